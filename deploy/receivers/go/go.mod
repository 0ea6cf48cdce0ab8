module receiver

go 1.18

require github.com/lib/pq v1.10.7
