package test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/doctest"
	"gatehouse/shared/must"
)

// TestREADME_transcripts types the commands of the README's first examples, against a real daemon with
// those rules. What changes from run to run (seconds, window starts, addresses) is left out.
func TestREADME_transcripts(t *testing.T) {
	dir, root := t.TempDir(), ""
	var shells []doctest.Block
	for _, b := range doctest.Blocks(t, "README.md") {
		switch {
		case b.Lang == "yaml" && b.File != "":
			// What a reader saves in the repository must not change it: a file that git sees makes the version
			// of the next build dirty, and one at the top fails a test.
			if !strings.HasPrefix(b.File, ".run/") {
				t.Errorf("%s: %s does not lie below .run/", b.Place(), b.File)
			}
			path := filepath.Join(dir, b.File)
			must.Succeed(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must.Succeed(t, os.WriteFile(path, []byte(b.Text), 0o644))
		case b.Lang == "console":
			shells = append(shells, b)
		case b.Lang == "sh":
			if m := regexp.MustCompile(
				`RUNTIME_ROOT=\$PWD(\S*) .*bin/ratelimit\n`).FindStringSubmatch(b.Text); m != nil {
				root = filepath.Join(dir, m[1])
			}
		}
	}
	if len(shells) == 0 {
		t.Error("README.md has no ```console block")
	}
	if root == "" {
		t.Fatal("README.md says nowhere how to run the daemon: RUNTIME_ROOT=$PWD… bin/ratelimit")
	}
	t.Chdir(dir)
	for attempt := 0; ; attempt++ {
		begun := time.Now().Unix() / 60
		p := start(t, "", map[string]string{"RUNTIME_ROOT": root, "RUNTIME_APPDIRECTORY": "config"})
		var wrong []string
		for _, b := range shells {
			wrong = append(wrong, typeBlock(t, p, b)...)
		}
		if time.Now().Unix()/60 != begun && attempt < 3 {
			continue
		}
		for _, w := range wrong {
			t.Error(w)
		}
		return
	}
}

func typeBlock(t *testing.T, p *process, b doctest.Block) (wrong []string) {
	t.Helper()
	addresses := strings.NewReplacer("localhost:8081", p.grpc, "localhost:8080", p.http, "localhost:6070", p.debug)
	back := strings.NewReplacer(p.grpc, "localhost:8081", p.http, "localhost:8080", p.debug, "localhost:6070")
	for command := range strings.SplitSeq(strings.TrimPrefix(b.Text, "$ "), "\n$ ") {
		line, want, _ := strings.Cut(strings.TrimSuffix(command, "\n"), "\n")
		got := back.Replace(typeLine(t, addresses.Replace(line)))
		if steady(got) != steady(want) {
			wrong = append(wrong, fmt.Sprintf("%s: $ %s\n it says:\n%s\n true is:\n%s", b.Place(), line, want, got))
		}
	}
	return wrong
}

// typeLine carries out bin/ratelimit … and curl … without a shell.
func typeLine(t *testing.T, line string) string {
	t.Helper()
	if args, ok := strings.CutPrefix(line, "bin/ratelimit "); ok {
		var out bytes.Buffer
		args, echo := strings.CutSuffix(args, "; echo $?")
		cmd := command(nil, strings.Fields(args)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if echo {
			fmt.Fprintln(&out, cmd.ProcessState.ExitCode())
		}
		return out.String()
	}
	m := regexp.MustCompile(`^curl (?:-s )?'?([^' ]+)'?(?: -d '([^']*)')?$`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("README.md: cannot type %q", line)
	}
	if !strings.Contains(m[1], "://") {
		m[1] = "http://" + m[1]
	}
	method := http.MethodGet
	if m[2] != "" {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(t.Context(), method, m[1], strings.NewReader(m[2]))
	must.Succeed(t, err)
	answer, err := http.DefaultClient.Do(request)
	must.Succeed(t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	must.Succeed(t, err)
	return string(body)
}

var volatile = regexp.MustCompile(`(seconds:|durationUntilReset": ?"|ends in |_)\d+`)

// steady leaves out what differs from run to run: times, and spaces that protobuf puts in at random.
func steady(s string) string {
	s = volatile.ReplaceAllString(s, "${1}N")
	s = regexp.MustCompile(`([,:]) *`).ReplaceAllString(s, "$1")
	return strings.Join(strings.Fields(s), " ")
}
