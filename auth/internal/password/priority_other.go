//go:build !linux

package password

import (
	"errors"
	"os/exec"
)

// lowPriority is not to be had where a priority belongs to the whole process.
func lowPriority() error { return errors.New("threads have no priority of their own on this system") }

func onFirstThread() bool { return false }

func separate(*exec.Cmd) {}

func hide() {}

func lowProcess() error { return errors.New("the priority of a process is lowered on Linux only") }
