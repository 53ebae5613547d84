#!/usr/bin/env bash
# Functions that the test bed scripts share: messages, processes that are stopped only if the script
# started them, and a lock. A script sources it after setting `directory`, its state directory.
script=${0##*/}
: "${directory:?}"

usage() { sed -n "/^# *$script /s/^# \{0,1\}//p" "$0"; }
fail() { # fail EXIT-CODE MESSAGE
  local code=$1
  shift
  echo "$script: $*" >&2
  exit "$code"
}
# The files of the state directory name processes and namespaces, so another user must neither own
# it nor be able to write to it.
check_owner() { # check_owner DIRECTORY
  local owner mode
  [ -e "$1" ] || [ -L "$1" ] || return 0
  if [ -L "$1" ] || [ ! -d "$1" ]; then fail 3 "$1 is not a directory"; fi
  read -r owner mode < <(stat -c '%u %a' "$1")
  if [ "$owner" != 0 ] && [ "$owner" != "$(id -u)" ]; then fail 3 "$1 belongs to another user"; fi
  if ((8#$mode & 8#002)); then fail 3 "other users can write to $1"; fi
}
# By default, the state directory is in a directory below /tmp.
if [ -z "${TESTBED:-}" ]; then check_owner "$(dirname "$directory")"; fi
check_owner "$directory"
need_root() { [ "$(id -u)" = 0 ] || fail 3 "'$1' needs root (network namespaces and mounts for every node)"; }
need_number() { [[ ${2:-} =~ ^[1-9][0-9]?$ ]] || fail 2 "'$1' needs a node number from 1 to 99, not '${2:-}'"; }

# --- processes -----------------------------------------------------------------------------------
# The start time in clock ticks since boot distinguishes a process from a later one with the same
# pid.
process_stat() { # sets `state` and `started` of process $1
  local line fields
  line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -ra fields <<<"${line##*) }"
  state=${fields[0]} started=${fields[19]}
}
is_ours() { # is_ours NAME: is the process that was started under this name still running?
  local pid known state started
  [ -e "$directory/run/$1" ] || return 1
  read -r pid known <"$directory/run/$1" && process_stat "$pid" && [ "$started" = "$known" ] && [ "$state" != Z ]
}
start_process() { # start_process NAME CMD...: in a session of its own, output in $directory/NAME.log
  local name=$1 pid state started
  shift
  setsid "$@" </dev/null >"$directory/$name.log" 2>&1 9<&- &
  pid=$!
  process_stat "$pid" || started=ended # the caller sees that it is not running
  echo "$pid $started" >"$directory/run/$name"
}
stop_process() { # stop_process NAME: TERM, then KILL after 10 s
  local name=$1 pid tries
  if is_ours "$name"; then
    read -r pid _ <"$directory/run/$name"
    kill "$pid" 2>/dev/null || true
    for ((tries = 0; tries < 100; tries++)); do
      is_ours "$name" || break
      sleep 0.1
    done
    if is_ours "$name"; then kill -9 "$pid" 2>/dev/null || true; fi
  fi
  rm -f "$directory/run/$name"
}

# --- nodes ---------------------------------------------------------------------------------------
unmount_node() { # unmount_node I [lazy]: the mount process must be stopped afterwards
  local i=$1 tries
  # A view's holder, the last user of the mount, ends some moments after its program.
  for ((tries = 0; tries < 40; tries++)); do
    mountpoint -q "$directory/nodes/$i" || return 0
    if umount "$directory/nodes/$i" 2>"$directory/umount.log"; then return 0; fi
    sleep 0.25
  done
  [ "${2:-}" = lazy ] || fail 1 "node $i is in use, so its caches cannot be dropped: $(cat "$directory/umount.log")"
  echo "$script: node $i is still in use; detaching it" >&2
  umount -l "$directory/nodes/$i" || true
}

# --- the whole test bed --------------------------------------------------------------------------
# Only one `up`, `drop` or `down` runs at a time; the lock is on the state directory itself
# (descriptor 9).
lock() {
  local tries
  for ((tries = 0; tries < 20; tries++)); do
    mkdir -p "$directory"
    check_owner "$directory"
    exec 9<"$directory"
    flock -w 300 9 || fail 1 "another command has been holding $directory for 300 s"
    # If a `down` removed the directory while this process waited, the new directory is locked.
    if [ "$directory" -ef /proc/self/fd/9 ]; then return; fi
  done
  fail 1 "$directory keeps disappearing"
}
remove_directory() {
  # Never delete through a mount that could not be unmounted.
  if grep -qF " $directory/" /proc/mounts; then fail 1 "something is still mounted under $directory; nothing was deleted"; fi
  rm -rf --one-file-system "$directory"
  # The parent directory belongs to the test beds only with the default path.
  if [ "$directory" = "/tmp/quell-testbed/$script" ]; then rmdir "${directory%/*}" 2>/dev/null || true; fi
}
