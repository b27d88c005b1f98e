module fairgate.io/loadtest/noop

go 1.24
