//go:build linux

package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestUsage: -h names whatever -only takes, each target, and what tuned is; -short takes as long there as in README.md.
func TestUsage(t *testing.T) {
	var out bytes.Buffer
	if err := runSuite(t.Context(), []string{"-h"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	words := strings.FieldsFunc(out.String(), func(r rune) bool { return strings.ContainsRune(",;: \n\t", r) })
	said := " " + strings.Join(words, " ") + " "
	names := append(append(ratelimitNames(), authScenarios...), takeoverNames()...)
	names = append(names, "reload", "small", "tuned is grpc-go as fast as it was made to go")
	for _, g := range append(groups(), authGroups()...) {
		for _, l := range g {
			names = append(names, strings.TrimSuffix(l.target, limitsRules))
		}
	}
	for _, name := range names {
		if name = strings.NewReplacer(",", "", ":", " ").Replace(name); !strings.Contains(said, " "+name+" ") {
			t.Errorf("-h does not name %q:\n%s", name, out.String())
		}
	}
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	const short = "everything once and briefly, about four minutes"
	if !strings.Contains(out.String(), short) || !bytes.Contains(page, []byte(short)) {
		t.Errorf("-h or README.md lacks %q", short)
	}
	if status := exitStatus(flag.ErrHelp); status != 0 {
		t.Errorf("-h ends with status %d", status)
	}
	if status := exitStatus(errors.New("x")); status != 1 {
		t.Errorf("an error ends with status %d", status)
	}
}

// TestLoadtestRun has the k6 scripts' program say how it is used.
func TestLoadtestRun(t *testing.T) {
	for _, args := range [][]string{{}, {"-h"}, {"nothing"}} {
		out, err := exec.CommandContext(t.Context(), "../loadtest/run", args...).CombinedOutput()
		status := 0
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			status = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		want := 2
		if len(args) > 0 && args[0] == "-h" {
			want = 0
		}
		if status != want || !strings.Contains(string(out), "usage: loadtest/run auth|ratelimit [SCRIPT...]") ||
			!strings.Contains(string(out), "ratelimit: bucket grpc json sliding") {
			t.Errorf("run %q: %d %s", args, status, out)
		}
	}
}
