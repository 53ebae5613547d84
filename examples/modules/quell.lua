-- Lmod module of an installation of Quell: `module load quell`.
local prefix = "/shared/apps/quell"
whatis("I/O middleware between programs and a shared file system")
prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("MANPATH", pathJoin(prefix, "share/man"))
prepend_path("PKG_CONFIG_PATH", pathJoin(prefix, "lib/pkgconfig"))
prepend_path("PYTHONPATH", pathJoin(prefix, "share/quell/python"))
