package password

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// niceOf reads the nice value of every thread of this process: field 19 of stat (proc(5)).
func niceOf(t *testing.T) map[int]int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/self/task/*/stat")
	if err != nil || len(dirs) == 0 {
		t.Fatal(dirs, err)
	}
	out := map[int]int{}
	for _, file := range dirs {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ") // behind the name; field 3 is next
		nice, err := strconv.Atoi(strings.Fields(rest)[19-3])
		if err != nil {
			t.Fatal(err)
		}
		tid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		out[tid] = nice
	}
	return out
}

// Only the workers run at nice 19: not the threads that the runtime starts while they work, and none that is left
// when they have ended.
func TestPriority(t *testing.T) {
	own, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil || 20-own >= lowestPriority {
		t.Skipf("this process runs at nice %d itself", 20-own)
	}
	w := NewWorkers(Options{Workers: 3, Params: cheap})
	var mu sync.Mutex
	hashing := map[int]bool{}
	var wg sync.WaitGroup
	for range 60 {
		wg.Go(func() {
			w.do(context.Background(), func() {
				cheap.hash([]byte("x"))
				mu.Lock()
				hashing[syscall.Gettid()] = true
				mu.Unlock()
			})
		})
		wg.Go(func() { // blocked in the kernel, so that the runtime needs more threads
			pause(2e6)
		})
	}
	wg.Wait()
	low := 0
	for tid, nice := range niceOf(t) {
		if nice == lowestPriority {
			low++
			if tid == syscall.Getpid() {
				t.Error("the first thread became a worker")
			}
			if !hashing[tid] && len(hashing) == 3 {
				t.Errorf("thread %d is no worker and runs at nice %d", tid, nice)
			}
		} else if hashing[tid] {
			t.Errorf("worker thread %d runs at nice %d", tid, nice)
		}
	}
	if low != 3 {
		t.Errorf("%d threads of low priority, want 3", low)
	}
	w.Close()
	// Close waits for the goroutines; the kernel ends the threads right after.
	for try := 0; low > 0; try++ {
		low = 0
		for tid, nice := range niceOf(t) {
			if nice == lowestPriority {
				low++
				if try == 1000 {
					t.Fatalf("thread %d of low priority outlives Close", tid)
				}
			}
		}
		pause(1e6)
	}
}

// A descriptor that this process inherited without close-on-exec does not reach the child: neither by the system call
// nor, where that is refused, over /proc.
func TestCloseOnExec(t *testing.T) {
	for name, mark := range map[string]func() error{"closeOnExec": closeOnExec,
		"closeListedOnExec": closeListedOnExec} {
		fd, err := syscall.Dup(0) // unmarked
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		if err := mark(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%s: descriptor %d would be inherited (flags %d, %v)", name, fd, flags, err)
		}
		if flags, err := unix.FcntlInt(2, unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			t.Errorf("%s: standard error would be closed (flags %d, %v)", name, flags, err)
		}
	}
}

// pause blocks the thread, not only the goroutine.
func pause(nanoseconds int64) {
	time := syscall.NsecToTimespec(nanoseconds)
	syscall.Nanosleep(&time, nil)
}

func TestCPUQuota(t *testing.T) {
	f := func(want float64, files ...string) {
		t.Helper()
		root := t.TempDir()
		for i := 0; i < len(files); i += 2 {
			file := filepath.Join(root, files[i])
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(files[i+1]), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, ok := cpuQuota(root); ok != (want > 0) || ok && have != want {
			t.Errorf("%v, %v; want %v", have, ok, want)
		}
	}
	f(0)
	f(0, "proc/self/cgroup", "0::/\n")
	f(0, "proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "max 100000\n")
	f(1.5, "proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "150000 100000\n")
	f(0.5, "proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max", "max 100000\n", "sys/fs/cgroup/a/cpu.max",
		"50000 100000\n", "sys/fs/cgroup/cpu.max", "200000 100000")
	f(2, "proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "200000\n",
		"sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n")
	f(0, "proc/self/cgroup", "4:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n",
		"sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n")
	if DefaultWorkers() < 1 {
		t.Error("no workers")
	}
}
