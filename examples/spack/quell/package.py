# Recipe for Spack: copy the directory to packages/ of a repository of your own. Not tried.
from spack.package import *


class Quell(MakefilePackage):
    """I/O middleware between programs and a cluster's shared file system."""

    homepage = "https://example.org/quell"
    # The address of your copy of the repository.
    git = "https://example.org/quell.git"
    license("Apache-2.0")

    version("main", branch="main")

    depends_on("rust@1.90:", type="build")
    depends_on("c", type="build")
    depends_on("gmake", type="build")

    def build(self, spec, prefix):
        make("build")

    def install(self, spec, prefix):
        make("install", f"PREFIX={prefix}")
