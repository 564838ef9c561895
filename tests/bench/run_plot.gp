# gnuplot -c run_plot.gp DATA PNG: what run.py --plot wrote, as a picture: CPU of requests above, of events below.
set terminal pngcairo size 900,800 font "sans,9" noenhanced
set output ARG2
data = ARG1
set datafile separator "\t"
set key autotitle columnheader outside top center horizontal
set style data histogram
set style histogram clustered gap 1
set style fill solid 0.8 noborder
set yrange [0:*]
set grid ytics lc rgb "#dddddd"
set ylabel "us of CPU"
set xtics scale 0
set multiplot layout 2,1
set title "a request: two legs through the router and other routers, one leg through nginx and haproxy"
plot data using 2:xtic(1) lc rgb "#4477aa", "" using 3 lc rgb "#ccbb44"
set title "an event of a stream"
plot data using 4:xtic(1) lc rgb "#228833", "" using 5 lc rgb "#66ccee"
