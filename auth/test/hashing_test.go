package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gatehouse/shared/await"
	"gatehouse/shared/testdb"
)

// childrenOf finds the processes that a daemon has started.
func childrenOf(pid int) (children []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ") // behind the name: state, parent
		if f := strings.Fields(rest); len(f) > 1 && f[0] != "Z" && f[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			children = append(children, child)
		}
	}
	return children
}

// The daemon hashes in a process of its own: of low priority, without the daemon's secrets, deaf to the
// signals that end the daemon, and gone when the daemon is, however that ends.
func TestHashingProcess(t *testing.T) {
	t.Parallel()
	d := start(t, environment(testdb.Postgres(t), "AUTH_MAILER_AUTOCONFIRM=true", "AUTH_PASSWORD_WORKERS=2"))
	if c := childrenOf(d.PID()); len(c) != 0 {
		t.Errorf("children before the first password: %v", c)
	}
	d.want(t, 200, "POST", "/signup", "", `{"email":"ann@example.org","password":"correct horse"}`)
	children := childrenOf(d.PID())
	if len(children) != 1 {
		t.Fatalf("children: %v, want one", children)
	}
	child := children[0]
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", child)); err == nil && len(env) > 0 {
		t.Errorf("its environment is %q", env)
	}
	// Three pipes, and what Go's runtime opens; not the daemon's own, nor what that inherited.
	if fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", child)); err == nil { // root's right
		for _, fd := range fds {
			to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", child, fd.Name()))
			if n, _ := strconv.Atoi(fd.Name()); err == nil && (n > 2 && !strings.HasPrefix(to, "anon_inode:") &&
				!strings.HasPrefix(to, "/sys/fs/cgroup/") || n <= 2 && !strings.HasPrefix(to, "pipe:")) {
				t.Errorf("its descriptor %s is %s", fd.Name(), to)
			}
		}
	}
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", child))
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the thread has ended
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		if nice := strings.Fields(rest)[19-3]; nice != "19" {
			t.Errorf("a thread runs at nice %s", nice)
		}
	}
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGTERM} {
		if err := syscall.Kill(child, s); err != nil {
			t.Error(err)
		}
	}
	signIn := func() {
		t.Helper()
		d.want(t, 400, "POST", "/token?grant_type=password", "", `{"email":"ann@example.org","password":"wrong horse"}`)
		d.want(t, 200, "POST", "/token?grant_type=password", "",
			`{"email":"ann@example.org","password":"correct horse"}`)
	}
	signIn()
	if c := childrenOf(d.PID()); len(c) != 1 || c[0] != child {
		t.Errorf("children after the signals: %v, want %d", c, child)
	}

	syscall.Kill(child, syscall.SIGKILL)
	signIn()
	if children = childrenOf(d.PID()); len(children) != 1 || children[0] == child {
		t.Errorf("children after %d was killed: %v", child, children)
	}
	d.log.await(t, `"msg":"password: the process for hashing has ended`, &struct{}{})

	d.Signal(syscall.SIGKILL)
	<-d.Ended()
	t.Cleanup(func() {
		if t.Failed() {
			syscall.Kill(children[0], syscall.SIGKILL)
		}
	})
	await.True(t, "the child ends with the daemon", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", children[0]))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}
