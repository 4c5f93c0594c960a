package takeover_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/takeover"
)

// asProcess makes this test binary a takeover, which kills itself.
const asProcess = "GATEHOUSE_TEST_AS_TAKEOVER"

// child is what such a process does.
type child struct {
	URL, SourceURL, Schema, Namespace string
	Mode                              takeover.Mode
	// After is the batch after which the process dies, from 1, Within the one during which; 0: none.
	After, Within int
	Rows, Kept    int
}

func TestMain(m *testing.M) {
	if text := os.Getenv(asProcess); text != "" {
		if err := runChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func runChild(text string) error {
	var c child
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx := context.Background()
	db, err := store.Open(ctx, store.Options{URL: c.URL, Settings: store.Settings{Namespace: c.Namespace, MaxConns: 4},
		Name: former.ApplicationName})
	if err != nil {
		return err
	}
	defer db.Close()
	source, err := former.OpenSource(ctx, c.SourceURL, c.Schema)
	if err != nil {
		return err
	}
	defer source.Close()
	die := func() { syscall.Kill(os.Getpid(), syscall.SIGKILL); select {} }
	after, within := 0, 0
	o := takeover.Options{Mode: c.Mode, Source: source, DB: db, Settings: settings(nil), LeaveOut: losses,
		Out: os.Stdout, Log: os.Stderr}
	o.Settings.Namespace = c.Namespace
	o.Hooks = takeover.Hooks{Rows: c.Rows, Kept: c.Kept, Batch: func(string) {
		if after++; after == c.After {
			die()
		}
	}, Writing: func(string) {
		if within++; within == c.Within {
			die()
		}
	}}
	return takeover.Run(ctx, o)
}

// process runs a takeover in a process of its own. killed: it died of SIGKILL; else it is done, or was before.
func (m *move) process(t *testing.T, c child) (killed bool) {
	t.Helper()
	c.URL, c.SourceURL, c.Schema, c.Namespace = m.url, m.sourceURL, m.Schema, m.namespace
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = []string{asProcess + "=" + string(text), "PATH=" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=10"}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	m.private(t, output{out: out.String()})
	if err == nil || strings.Contains(out.String(), " was closed at ") {
		return false
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("%+v: %v\n%s", c, err, out.String())
	}
	return true
}
