package password

import "syscall"

// lowestPriority is the nice value of a thread that gets what others leave.
const lowestPriority = 19

// lowPriority lowers the priority of the calling thread alone: on Linux a thread id stands for itself
// here, contrary to POSIX. Lowering needs no privilege; a seccomp filter may still refuse.
func lowPriority() error {
	return syscall.Setpriority(syscall.PRIO_PROCESS, syscall.Gettid(), lowestPriority)
}

// onFirstThread says whether the calling thread is the one that the process began with.
func onFirstThread() bool { return syscall.Gettid() == syscall.Getpid() }
