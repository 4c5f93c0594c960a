package password

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lowestPriority is the nice value of a thread that gets what others leave.
const lowestPriority = 19

// lowPriority lowers the priority of the calling thread alone: on Linux a thread id stands for itself
// here, contrary to POSIX. Lowering needs no privilege; a seccomp filter may still refuse.
func lowPriority() error {
	return syscall.Setpriority(syscall.PRIO_PROCESS, syscall.Gettid(), lowestPriority)
}

// sessionPriority is that of a hashing child's session: a tenth of the usual share. It bears on all sessions
// of the machine, whoever's they are, which shall not stop hashing altogether.
const sessionPriority = 10

// onFirstThread says whether the calling thread is the one that the process began with.
func onFirstThread() bool { return syscall.Gettid() == syscall.Getpid() }

// separate starts a command in a session of its own: no terminal's signals are for it, and lowProcess can
// name its threads, and nobody else's.
func separate(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// lowProcess lowers the priority of all threads of this process, which leads a session of its own; those
// that start later inherit it. Where the kernel shares out the processor by session first (autogroup in
// sched(7)), the session's share is lowered too: else it would be as large as that of each PostgreSQL
// backend, since they are sessions as well (GET /user under a flood: p99 300 ms instead of 3).
//
// SCHED_IDLE measures the same as nice 19, and leaves hashing a fifth of that on a machine that others
// keep busy.
func lowProcess() error {
	nice := []byte(strconv.Itoa(sessionPriority))
	for range 5 { // the kernel lets one process do this every 100 ms
		if err := os.WriteFile("/proc/self/autogroup", nice, 0); !errors.Is(err, syscall.EAGAIN) {
			break // done, or there are no such groups
		}
		time.Sleep(110 * time.Millisecond)
	}
	return syscall.Setpriority(syscall.PRIO_PGRP, 0, lowestPriority)
}

// hide keeps others of the same user, and core dumps, from this process's memory, and names it for ps and
// top. Where that is refused, the daemon's memory lies as open.
func hide() {
	os.WriteFile("/proc/self/comm", []byte("auth-hashing"), 0) // first: the next line takes the right away
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
