package password

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gatehouse/shared/must"
)

// A descriptor that this process inherited without close-on-exec does not reach the child: neither by the system call
// nor, where that is refused, over /proc.
func TestCloseOnExec(t *testing.T) {
	for name, mark := range map[string]func() error{"closeOnExec": closeOnExec,
		"closeListedOnExec": closeListedOnExec} {
		fd, err := syscall.Dup(0) // unmarked
		must.Succeed(t, err)
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

func TestCPUQuota(t *testing.T) {
	f := func(want float64, files ...string) {
		t.Helper()
		root := t.TempDir()
		for i := 0; i < len(files); i += 2 {
			file := filepath.Join(root, files[i])
			must.Succeed(t, os.MkdirAll(filepath.Dir(file), 0o755))
			must.Succeed(t, os.WriteFile(file, []byte(files[i+1]), 0o644))
		}
		if have, ok := cpuQuota(root); ok != (want > 0) || ok && have != want {
			t.Errorf("%v, %v; want %v", have, ok, want)
		}
	}
	f(0)
	f(0, "proc/self/cgroup", "0::/\n")
	f(0, "proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "max 100000\n")
	f(1.5, "proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "150000 100000\n")
	f(1.5, "proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", " 150000\t100000\n")
	f(0, "proc/self/cgroup", "0::/\n", "sys/fs/cgroup/cpu.max", "150000\n")
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
