# Prints the tree below the directory $1: types, modes, sizes, targets of links, and the content.
cd "$1" || exit
find . -mindepth 1 -printf '%P %y %m %U %G %l %T@\n' | sed 's/\.[0-9]*$//' | awk '{ $NF = ""; print }' | LC_ALL=C sort
find . -type f -printf '%P %s\n' | LC_ALL=C sort
find . -type f -exec cksum {} + | LC_ALL=C sort -k 3
