package memlimit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// inGroup makes a test binary print its limit instead of running tests.
const inGroup = "TEST_PRINTS_LIMIT"

func TestMain(m *testing.M) {
	if os.Getenv(inGroup) != "" {
		fmt.Print(Limit())
		return
	}
	os.Exit(m.Run())
}

// A process in a control group below one with a limit, as that of a unit below a slice: the smaller limit counts,
// wherever it is set.
func TestLimit_nestedGroups(t *testing.T) {
	t.Parallel()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Skip(err)
	}
	base, file := "/sys/fs/cgroup", "memory.max"
	for line := range strings.Lines(string(own)) { // of version 1 the memory controller is a line of its own
		if _, group, ok := strings.Cut(strings.TrimSpace(line), ":memory:"); ok {
			base, file = filepath.Join("/sys/fs/cgroup/memory", group), "memory.limit_in_bytes"
		}
	}
	const most, less = 96 << 20, 64 << 20
	for name, limits := range map[string][]int{"the slice's": {less, most}, "the unit's": {most, less}, "one": {less, 0}} {
		outer := filepath.Join(base, fmt.Sprintf("gatehouse-memlimit-%d-%d", os.Getpid(), limits[1]))
		inner := filepath.Join(outer, "unit")
		t.Cleanup(func() { os.Remove(inner); os.Remove(outer) })
		if err := groups(file, outer, inner, limits); err != nil {
			t.Skipf("control groups need root, and a machine that lets it: %v", err)
		}
		cmd := exec.Command("sh", "-c", `echo $$ >"$0" && exec "$1"`, filepath.Join(inner, "cgroup.procs"), os.Args[0])
		cmd.Env = []string{inGroup + "=1"}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != strconv.Itoa(less) {
			t.Errorf("%s limit is less: %s %v, want %d", name, out, err, less)
		}
	}
}

// groups makes two, one in the other, with limits; 0: none.
func groups(file, outer, inner string, limits []int) error {
	err := errors.Join(os.Mkdir(outer, 0o755), enable(file, filepath.Dir(outer)), enable(file, outer), os.Mkdir(inner, 0o755))
	for i, dir := range []string{outer, inner} {
		if limits[i] > 0 && err == nil {
			err = os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limits[i])), 0o644)
		}
	}
	return err
}

// enable gives the groups below a group of version 2 the memory controller.
func enable(file, group string) error {
	if file != "memory.max" {
		return nil
	}
	return os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+memory"), 0o644)
}
