-- Lmod module of an environment that has an index: after `module load env`, the command `python`
-- starts the Python of the environment through `quell run`. Add one such line for each command.
local env = "/shared/env"
local run = "quell run -i " .. env .. ".quell -- " .. env .. "/bin/"
depends_on("quell")
whatis("A Python environment, served from its index")
set_shell_function("python", run .. 'python "$@"', run .. "python $*")
