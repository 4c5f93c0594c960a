// Package envoytest runs a real Envoy in a test. Its configuration is that of one of this repository's examples, except
// for addresses and what the test changes.
package envoytest

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/subprocess"
)

// Program returns the path of Envoy: ENVOY_BIN, or Envoy on PATH, or where the script .ci/envoy has installed it. If
// there is none, the test is skipped with the reason that .ci/envoy has noted. If REQUIRE_SERVERS is 1 and .ci/envoy
// was not run, the test fails.
func Program(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs Envoy")
	}
	root := repository(t)
	if path := localserver.Envoy(root); path != "" {
		return path
	}
	must.Fetched(t, root, "envoy", "no Envoy: name one by ENVOY_BIN, or have .ci/envoy fetch one")
	return ""
}

// repository returns the folder with go.mod. Tests run in the folder of their package or of their daemon, so it is a
// folder above.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		above := filepath.Dir(dir)
		if above == dir {
			t.Fatal("there is no go.mod in this folder or above")
		}
		dir = above
	}
}

// Valid runs Envoy's own validation of a configuration file, without decoding it first, so comments and YAML aliases
// are checked too.
func Valid(t testing.TB, file string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), Program(t), "--mode", "validate", "-c", file, "--log-level",
		"warning").CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", file, err, out)
	}
}

// Envoy is a running Envoy. It is stopped when the test ends.
type Envoy struct {
	*subprocess.Process
	// Addr is the address of the first listener, and Admin that of the administration page, both as host:port.
	Addr, Admin string
}

// Start runs Envoy, with its first listener and its administration page on free ports of 127.0.0.1, and waits until it
// listens.
func Start(t testing.TB, c Config) *Envoy {
	t.Helper()
	program := Program(t)
	Map(t, c, "admin")["address"] = address(t, "127.0.0.1:0")
	Map(t, c, "static_resources", "listeners", 0)["address"] = address(t, "127.0.0.1:0")

	dir := t.TempDir()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	file, admin := filepath.Join(dir, "envoy.json"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	log := new(subprocess.Lines)
	cmd := exec.Command(program, "-c", file, "--admin-address-path", admin, "--concurrency", "1",
		"--disable-hot-restart", "--log-level", "warning")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	e := new(Envoy)
	if e.Process, err = subprocess.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Stop(10 * time.Second)
		if t.Failed() {
			t.Logf("log of Envoy:\n%s", log)
		}
	})
	e.await(t, log, admin)
	return e
}

// await waits for at most a minute until Envoy listens and has reported its addresses.
func (e *Envoy) await(t testing.TB, log *subprocess.Lines, admin string) {
	t.Helper()
	for begun := time.Now(); time.Since(begun) < time.Minute; time.Sleep(20 * time.Millisecond) {
		select {
		case <-e.Ended():
			t.Fatalf("Envoy ended:\n%s", log)
		default:
		}
		text, err := os.ReadFile(admin)
		if err != nil || len(text) == 0 {
			continue
		}
		e.Admin = string(text)
		if status, _ := e.Page("/ready"); status != 200 {
			continue
		}
		_, page := e.Page("/listeners?format=json")
		var listening struct {
			Statuses []struct {
				Address struct {
					Socket struct {
						Port int `json:"port_value"`
					} `json:"socket_address"`
				} `json:"local_address"`
			} `json:"listener_statuses"`
		}
		if json.Unmarshal([]byte(page), &listening) == nil && len(listening.Statuses) == 1 {
			e.Addr = "127.0.0.1:" + strconv.Itoa(listening.Statuses[0].Address.Socket.Port)
			return
		}
	}
	t.Fatalf("Envoy is not ready:\n%s", log)
}

// Page requests a page of Envoy's administration. If there is no answer, status is 0 and body is the error.
func (e *Envoy) Page(path string) (status int, body string) {
	client := http.Client{Timeout: 30 * time.Second}
	resp, err := client.Get("http://" + e.Admin + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}
