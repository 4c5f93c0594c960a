package imagetest

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inNetwork calls f on a thread that is in a process's network. Sockets that f opens stay there. The thread never
// serves other goroutines: it ends with the goroutine that is locked to it.
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
