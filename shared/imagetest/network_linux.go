package imagetest

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNetwork calls f on a thread that has entered the network of a process. Sockets that f opens belong to that network.
// Afterwards the thread ends, so that it never runs other goroutines in that network.
func inNetwork(pid int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
			file.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
