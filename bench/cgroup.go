//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// controlGroup is a control group of this machine with a memory limit and a CPU quota.
type controlGroup struct {
	memory string   // folder of the memory controller
	dirs   []string // all folders of the group
	v2     bool
}

// newControlGroup makes a group below this process's group: version 2, or the memory and cpu controllers of version 1.
// Only root may.
func newControlGroup(name string, memory int64, cores float64) (*controlGroup, error) {
	own, err := ownGroups()
	if err != nil {
		return nil, err
	}
	const period = 100_000 // µs
	quota := strconv.Itoa(int(cores * period))
	g := &controlGroup{}
	limits := map[string]string{}
	if dir, ok := own["memory"]; ok {
		g.memory = filepath.Join(dir, name)
		cpu := filepath.Join(own["cpu"], name)
		g.dirs = []string{g.memory, cpu}
		limits[filepath.Join(g.memory, "memory.limit_in_bytes")] = strconv.FormatInt(memory, 10)
		limits[filepath.Join(cpu, "cpu.cfs_period_us")] = strconv.Itoa(period)
		limits[filepath.Join(cpu, "cpu.cfs_quota_us")] = quota
	} else {
		// A group with processes cannot have subgroups with controllers, so the new group is directly below the root.
		g.memory, g.v2 = filepath.Join("/sys/fs/cgroup", name), true
		g.dirs = []string{g.memory}
		limits["/sys/fs/cgroup/cgroup.subtree_control"] = "+memory +cpu"
		limits[filepath.Join(g.memory, "memory.max")] = strconv.FormatInt(memory, 10)
		limits[filepath.Join(g.memory, "memory.swap.max")] = "0"
		limits[filepath.Join(g.memory, "cpu.max")] = fmt.Sprintf("%s %d", quota, period)
	}
	for _, dir := range g.dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("control groups: %w", err)
		}
	}
	for file, value := range limits {
		if err := os.WriteFile(file, []byte(value), 0o644); err != nil && filepath.Base(file) != "memory.swap.max" {
			return nil, errors.Join(fmt.Errorf("control groups: %w", err), g.close())
		}
	}
	return g, nil
}

// ownGroups returns the folders of this process's groups by controller of version 1.
func ownGroups() (map[string]string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	own := map[string]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for controller := range strings.SplitSeq(fields[1], ",") {
			if slices.Contains([]string{"memory", "cpu"}, controller) {
				own[controller] = filepath.Join("/sys/fs/cgroup", controller, fields[2])
			}
		}
	}
	return own, nil
}

// enter has a command start in the group, so that the limits apply from the program's first moment.
func (g *controlGroup) enter(cmd *exec.Cmd) {
	script := ""
	for _, dir := range g.dirs {
		script += "echo $$ >" + dir + "/cgroup.procs && "
	}
	cmd.Args = append([]string{"sh", "-c", script + `exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}

// used returns the group's memory, and how often the kernel killed a process of the group for lack of memory.
func (g *controlGroup) used() (memory int64, kills int, err error) {
	current, events := "memory.usage_in_bytes", "memory.oom_control"
	if g.v2 {
		current, events = "memory.current", "memory.events"
	}
	text, err := os.ReadFile(filepath.Join(g.memory, current))
	if err != nil {
		return 0, 0, err
	}
	if memory, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err != nil {
		return 0, 0, err
	}
	if text, err = os.ReadFile(filepath.Join(g.memory, events)); err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			kills, err = strconv.Atoi(n)
		}
	}
	return memory, kills, err
}

// close removes the group, which must be empty.
func (g *controlGroup) close() (err error) {
	for _, dir := range g.dirs {
		err = errors.Join(err, os.Remove(dir))
	}
	return err
}
