package h2grpc_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"testing"

	"gatehouse/shared/must"
)

// TestH2spec runs the conformance tests of h2spec, which are RFC 7540's. They know nothing of gRPC: nearly all of their
// requests are answered with 405 or 415.
func TestH2spec(t *testing.T) {
	if testing.Short() {
		t.Skip("builds another module")
	}
	t.Parallel()
	program := filepath.Join(t.TempDir(), "h2spec")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = "h2spec"
	if out, err := build.CombinedOutput(); err != nil {
		must.Have(t, fmt.Errorf("h2spec cannot be built: %w\n%s", err, out))
	}
	// Tests that fail, with the sentence that lets them.
	const early = "RFC 9113, section 8.1: a server can send a complete response before the client has sent the " +
		"entire request"
	known := map[string]string{
		"generic/2/2":     "an answer without a message has no DATA; TestWindows has the case",
		"generic/2/3":     "an answer without a message has no DATA; TestFollowedByCall has the case",
		"http2/5.1/8":     early + "; TestStreamErrors has the case",
		"http2/5.1/9":     early + "; TestConnectionErrors has the case",
		"http2/5.1.2/1":   early + ", so there never are that many streams; TestMaxStreams has the case",
		"http2/6.9.1/3":   early + "; TestStreamErrors has the case",
		"http2/8.1/1":     early + "; TestMessages has the case",
		"http2/8.1.2.1/3": early + "; TestMessages has the case",
		"http2/8.1.2.6/1": early + "; TestMessages has the case",
		"http2/8.1.2.6/2": early + "; TestMessages has the case",
	}
	r := newRig(t, nil)
	cmd := exec.Command(program, r.addr)
	var progress bytes.Buffer
	cmd.Stderr = &progress
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.Bytes())
	}
	passed, skipped := 0, 0
	missing := maps.Clone(known)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var test struct {
			ID, Test        string
			Failed, Skipped bool
			Expected, Got   string
		}
		if err := d.Decode(&test); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		delete(missing, test.ID)
		switch {
		case test.Skipped:
			skipped++
			t.Logf("skipped %s: %s", test.ID, test.Test)
		case test.Failed && known[test.ID] == "":
			t.Errorf("%s: %s\nwant %s\ngot  %s", test.ID, test.Test, test.Expected, test.Got)
		case !test.Failed && known[test.ID] != "":
			t.Errorf("%s: %s: does not fail any more", test.ID, test.Test)
		case !test.Failed:
			passed++
		}
	}
	if len(missing) > 0 {
		t.Errorf("not run: %v", missing)
	}
	if passed < 130 {
		t.Errorf("%d tests passed", passed)
	}
	t.Logf("%d passed, %d failed as expected, %d skipped", passed, len(known), skipped)
}
