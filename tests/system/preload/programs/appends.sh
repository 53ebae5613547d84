# Processes that append to the same file at the same time.
cd "$D"
for i in 1 2 3 4 5; do
  (for j in 1 2 3 4 5 6 7 8 9 10; do echo "$i $j" >> log; done) &
done
wait
sort log > sorted
rm log
cat sorted
