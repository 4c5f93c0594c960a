package test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/must"
)

// Package time's own Now, and the same with seconds added that are read from a file every 20 ms. The monotonic clock goes
// on as it did. Nothing in the product knows of it.
const (
	realNow = `func Now() Time {
	sec, nsec, mono := runtimeNow()
`
	shiftedNow = `func Now() Time {
	sec, nsec, mono := runtimeNow()
	sec += shiftBy.Load()
`
	shiftSource = `package time

import (
	"sync/atomic"
	"syscall"
)

var shiftBy atomic.Int64

func init() {
	readShift()
	go func() {
		for {
			Sleep(20 * Millisecond)
			readShift()
		}
	}()
}

func readShift() {
	name, ok := syscall.Getenv("TEST_CLOCK_SHIFT")
	if !ok {
		return
	}
	text, err := readFile(name)
	if err != nil || len(text) == 0 {
		return
	}
	sign, by := int64(1), int64(0)
	for _, c := range text {
		switch {
		case c == '-':
			sign = -1
		case c >= '0' && c <= '9':
			by = by*10 + int64(c-'0')
		}
	}
	shiftBy.Store(sign * by)
}
`
)

// shiftedProgram builds the daemon with such a clock. The first build compiles everything again, some minutes; later ones
// are found in Go's cache.
func shiftedProgram(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	must.Succeed(t, err)
	source := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	text, err := os.ReadFile(filepath.Join(source, "time.go"))
	must.Succeed(t, err)
	if strings.Count(string(text), realNow) != 1 {
		t.Fatalf("time.Now of %s is not what this test knows how to shift", source)
	}
	dir := t.TempDir()
	patched, added := filepath.Join(dir, "time.go"), filepath.Join(dir, "shift.go")
	write(t, patched, strings.Replace(string(text), realNow, shiftedNow, 1))
	write(t, added, shiftSource)
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{
		filepath.Join(source, "time.go"): patched, filepath.Join(source, "shift.go"): added}})
	must.Succeed(t, err)
	write(t, filepath.Join(dir, "overlay.json"), string(overlay))
	program := filepath.Join(dir, "auth")
	cmd := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-buildvcs=false",
		"-tags", "grpcnotrace", "-o", program, "gatehouse/auth")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o644))
}

// shiftedInstance is a daemon whose machine's clock is wrong.
type shiftedInstance struct {
	*instance
	program, file string
}

// startShifted starts one that is off by so much.
func startShifted(t testing.TB, program string, by time.Duration, env []string) *shiftedInstance {
	t.Helper()
	s := &shiftedInstance{program: program, file: filepath.Join(t.TempDir(), "shift")}
	s.shift(t, by)
	s.instance = launchProgram(t, program, t.TempDir(), append(env, "TEST_CLOCK_SHIFT="+s.file))
	s.awaitReady(t)
	return s
}

// shift sets the machine's clock while the daemon runs.
func (s *shiftedInstance) shift(t testing.TB, by time.Duration) {
	t.Helper()
	write(t, s.file+".new", strconv.Itoa(int(by/time.Second)))
	must.Succeed(t, os.Rename(s.file+".new", s.file))
}

// command runs a command of the same program, with the same clock.
func (s *shiftedInstance) command(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command(s.program, args...)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}
