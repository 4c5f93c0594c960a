package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/must"
)

func TestParseDotenv(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		vars, err := parseDotenv(text)
		var got []string
		for _, v := range vars {
			got = append(got, v[0]+"="+v[1])
		}
		if err != nil {
			got = []string{"error: " + err.Error()}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: %s", text, d)
		}
	}
	f("")
	f("\n \n# comment\n  # another\r\n")
	f("A=1\nB: 2\nC.d = 3 \nexport E=4\n\texport\tF: 5", "A=1", "B=2", "C.d=3", "E=4", "F=5")
	f("A=1\r\nB=2\r\n", "A=1", "B=2")
	f("\ufeffA=1", "A=1")
	f("A=\nB= \nC=#x\nD=x # y\nE=a#b\nF=a #", "A=", "B=", "C=", "D=x", "E=a#b", "F=a")
	f("A=a b  c\nB=$HOME ${A} `x` \\n", "A=a b  c", "B=$HOME ${A} `x` \\n")
	f(`A='$B \n "x" # no'`+"\n"+`B="\$B \n\r \"x\" \\ \q # no" # yes`, `A=$B \n "x" # no`,
		"B=$B \n\r \"x\" \\ \\q # no")
	f("A='one\ntwo'\nB=\"three\n four\"\nC=5", "A=one\ntwo", "B=three\n four", "C=5")
	f("A=x'y'z\nB=x\"", "A=x'y'z", "B=x\"")
	f("exported=1\nexport=2", "exported=1", "export=2")
	f("A=1\nA=2", "A=1", "A=2")
	f("A=1\nnothing", "error: line 2: is not NAME=value")
	f("=1", "error: line 1: is not NAME=value")
	f("export =1", "error: line 1: is not NAME=value")
	f("A B=1", "error: line 1: no = behind A")
	f("A-B=1", "error: line 1: no = behind A")
	f("A=1\n\nB='x\n\ny", "error: line 3: B: the quote is not closed")
	f(`A="secret\"`, "error: line 1: A: the quote is not closed")
	f(`A="secret"more`, "error: line 1: A: something follows the closing quote")
	f("A=\x00", "error: is not text")
	f("A=\xff", "error: is not text")
}

// The environment wins, an empty variable does not; a file that is named must exist.
func TestWithFile(t *testing.T) {
	t.Chdir(t.TempDir())
	f := func(environ, name, want string) {
		t.Helper()
		all, err := withFile(strings.Fields(environ), name)
		got := strings.Join(all, " ")
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s %s: got %q, want %q", environ, name, got, want)
		}
	}
	f("A=1", "", "A=1")
	f("A=1", "missing", "settings file: open missing: no such file or directory")
	must.Succeed(t, os.WriteFile(".env", []byte("A=file\nB=file\n"), 0o600))
	f("A=1", "", "A=1 B=file")
	f("A= C=3", "", "A= C=3 A=file B=file")
	other := filepath.Join(t.TempDir(), "other")
	must.Succeed(t, os.WriteFile(other, []byte("B=other\nwrong secret"), 0o600))
	f("", other, "settings file "+other+": line 2: no = behind wrong")
	must.Succeed(t, os.Mkdir("dir", 0o700))
	f("", "dir", "settings file: read dir: is a directory")

	// Libraries get the same values.
	must.Succeed(t, os.WriteFile(".env", []byte("PGCONNECT_TIMEOUT=3\nOTEL_SERVICE_NAME=file\nHOSTNAME_OF=file\n"), 0o600))
	t.Setenv("PGCONNECT_TIMEOUT", "")
	t.Setenv("OTEL_SERVICE_NAME", "here")
	if err := ExportStandard(os.Environ(), ""); err != nil || os.Getenv("PGCONNECT_TIMEOUT") != "3" ||
		os.Getenv("OTEL_SERVICE_NAME") != "here" || os.Getenv("HOSTNAME_OF") != "" {
		t.Errorf("%v, PGCONNECT_TIMEOUT=%q", err, os.Getenv("PGCONNECT_TIMEOUT"))
	}
}

// FuzzParseDotenv: whatever comes, the parser ends; names are names; and what it read, written in
// double quotes, is read again the same.
func FuzzParseDotenv(f *testing.F) {
	for _, s := range []string{"A=1", "export A: 'x\ny' # z", `A="\n\"\\\$"`, "A=a #b\r\nB='", "A=\\", "#\n\n=",
		`A="\`} {
		f.Add(s)
	}
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "$", `\$`)
	f.Fuzz(func(t *testing.T, text string) {
		vars, err := parseDotenv(text)
		if err != nil {
			return
		}
		var b strings.Builder
		for _, v := range vars {
			if strings.Trim(v[0], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") != "" ||
				v[0] == "" {
				t.Fatalf("%q has the name %q", text, v[0])
			}
			b.WriteString(v[0] + `="` + escape.Replace(v[1]) + "\"\n")
		}
		again, err := parseDotenv(b.String())
		if d := cmp.Diff(vars, again); d != "" || err != nil {
			t.Fatalf("%q: %v %s", text, err, d)
		}
	})
}
