package password

import (
	"math"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// lowestPriority is the nice value of threads that get what others leave.
const lowestPriority = 19

// separate starts a command in a session of its own: no terminal's signals reach it, and lowProcess can name its
// threads and no others.
func separate(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

// lowProcess lowers the priority of all threads of this process, which leads a session of its own; those that start
// afterwards inherit it. Lowering needs no privilege; a seccomp filter may still refuse.
//
// The session matters as much. Where the kernel shares the processor out by session first (autogroup in sched(7)),
// each PostgreSQL backend is one, and one of daemon and child together waits for the child (GET /user under a flood:
// p99 250 ms). Its share stays that of any session: with a tenth of it a machine kept busy by other processes gave a
// hash of 47 ms more than ten seconds. SCHED_IDLE measures the same as nice 19.
func lowProcess() error { return syscall.Setpriority(syscall.PRIO_PGRP, 0, lowestPriority) }

// closeOnExec marks every descriptor above standard error close-on-exec, so that a child gets none of those that
// this process was started with: a socket or a file that its parent left open. Go marks what it opens itself.
func closeOnExec() error {
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err == nil {
		return nil
	}
	return closeListedOnExec() // Linux before 5.11, or a filter that does not know the call
}

func closeListedOnExec() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// hide keeps others of the same user, and core dumps, from this process's memory, and names it for ps and
// top. Where that is refused, the daemon's memory lies as open.
func hide() {
	os.WriteFile("/proc/self/comm", []byte("auth-hashing"), 0) // first: the next line removes the right to
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
}
