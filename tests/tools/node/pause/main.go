// Command pause does nothing until it is told to end. It is the first process of the node's
// namespaces, the sandbox container of each pod, and a workload for tests.
//
// Usage: pause [DURATION]. With a duration, such as 3s, it ends by itself with exit code 0.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	var done <-chan time.Time
	if len(os.Args) > 1 {
		duration, err := time.ParseDuration(os.Args[1])
		if err != nil {
			fmt.Fprintf(os.Stderr, "pause: %v; usage: pause [DURATION], for example pause 3s\n", err)
			os.Exit(2)
		}
		done = time.After(duration)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for {
		select {
		case <-done:
			return
		case received := <-signals:
			if received != syscall.SIGCHLD {
				return
			}
			reap()
		}
	}
}

// reap collects every ended child: the kernel gives orphans to the first process of a PID namespace.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 || err != nil {
			return
		}
	}
}
