# Prints the tree below the directory $D: types, modes, sizes, targets of links, and the content.
cd "$D" || exit
find . -mindepth 1 -printf '%P %y %m %U %G %l %T@\n' | sed 's/\.[0-9]*$//' | awk '{ $NF = ""; print }' | LC_ALL=C sort
find . -type f -printf '%P %s\n' | LC_ALL=C sort
find . -type f -exec cksum {} + | LC_ALL=C sort -k 3
