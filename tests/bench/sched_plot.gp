# gnuplot -c sched_plot.gp DATA PNG: what sched --plot wrote, as a picture.
# Above: mean wait at the prefill engine of each policy, 99th percentile as a dot.  Below: the herd.
set terminal pngcairo size 1000,900 font "sans,9" noenhanced
set output ARG2
data = ARG1
set key autotitle columnheader
set multiplot layout 2,1

set title "wait at the prefill engine, seconds: mean (bar) and 99th percentile (dot)"
set logscale y 10
set yrange [0.0005:60]
set format y "%g"
set ylabel "s"
set grid ytics lc rgb "#dddddd"
width = 0.19
set boxwidth width
set style fill solid 0.8 noborder
set xtics rotate by 15 right scale 0
set xrange [-0.6:10.6]
set key outside top center horizontal
array column_of = [3, 4, 6, 7] # 64, 64-burst, 1024-burst, 2-routers
array name = ["64", "64, bursts", "1,024, bursts", "64, bursts, two routers"]
array colour = ["#4477aa", "#66ccee", "#228833", "#ccbb44"]
floor_s = 0.0005
high(v) = v > floor_s ? v : floor_s
plot data index 0 using 0:(1 / 0):xtic(1) with points notitle, \
     for [i=1:4] data index 0 using (column(0) + (i - 2.5) * width):(high(column(column_of[i]))) \
	with boxes lc rgb colour[i] title name[i], \
     for [i=1:4] data index 1 using (column(0) + (i - 2.5) * width):(high(column(column_of[i]))) \
	with points pt 7 ps 0.5 lc rgb "#333333" notitle

unset logscale y
set title "64 decode engines with a batch of 32, load 0.82, the same requests: most requests in one engine"
set xlabel "s"
set ylabel "requests"
set yrange [0:*]
set xrange [0:30]
set xtics norotate autofreq
plot data index 2 using 1:4 with lines lc rgb "#999999" title "round_robin", \
     data index 2 using 1:2 with lines lw 2 lc rgb "#cc3311" title "by the scrape alone", \
     data index 2 using 1:3 with lines lw 2 lc rgb "#117733" title "least_loaded"
