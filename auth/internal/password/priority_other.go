//go:build !linux

package password

import (
	"errors"
	"os/exec"
)

func separate(*exec.Cmd) {}

func hide() {}

// closeOnExec returns an error: only Linux has the call that marks all descriptors.
func closeOnExec() error { return errors.New("descriptors are marked close-on-exec on Linux only") }

func lowProcess() error { return errors.New("the priority of a process is lowered on Linux only") }
