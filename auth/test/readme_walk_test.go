package test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// This file holds README.md and docs/ to what the program does: whose guard and limits stand before a route,
// what their links name, which states there are, and what the first examples answer.

// limitNames are the settings behind the limiters, without AUTH_RATE_LIMIT_.
var limitNames = map[string]string{
	"bySignup": "OTP", "byRecover": "OTP", "byResend": "OTP", "byMagicLink": "OTP", "byOTP": "OTP", "byUser": "OTP",
	"byReauthenticate": "OTP", "byEnroll": "OTP",
	"byAnonymous": "ANONYMOUS_USERS", "byToken": "TOKEN_REFRESH", "byVerify": "VERIFY", "byAuthorize": "VERIFY",
	"byCallback":       "VERIFY",
	"byChallenge":      "`AUTH_MFA_RATE_LIMIT_CHALLENGE_AND_VERIFY`",
	"byFactorVerify":   "`AUTH_MFA_RATE_LIMIT_CHALLENGE_AND_VERIFY`",
	"byPasskeyOptions": "`AUTH_RATE_LIMIT_PASSKEY`", "byPasskeyVerify": "`AUTH_RATE_LIMIT_PASSKEY`",
	"byPasskeyRegistration": "`AUTH_RATE_LIMIT_PASSKEY`",
}

// TestDocs_routeColumns compares file, guard and limits of each route with the source of the handlers.
func TestDocs_routeColumns(t *testing.T) {
	type method struct {
		file string
		decl *ast.FuncDecl
	}
	methods := map[string]method{}
	for _, path := range glob(t, "internal/httpapi/*.go") {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(daemonDir, path), nil, 0)
		must.Succeed(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && !strings.HasSuffix(path, "_test.go") {
				methods[f.Name.Name] = method{path, f}
			}
		}
	}
	// limits are those that a handler, and what it calls of the same file, name.
	var limits func(m method, seen map[string]bool) []string
	limits = func(m method, seen map[string]bool) (found []string) {
		ast.Inspect(m.decl, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				if l := limitNames[n.Name]; l != "" {
					found = append(found, l)
				}
			case *ast.SelectorExpr:
				if next, ok := methods[n.Sel.Name]; ok && next.file == m.file && !seen[n.Sel.Name] {
					seen[n.Sel.Name] = true
					found = append(found, limits(next, seen)...)
				}
			}
			return true
		})
		return found
	}

	var want []string
	source, err := os.ReadFile(daemonDir + "/internal/httpapi/routes.go")
	must.Succeed(t, err)
	guards := map[string]string{"": "none", "s.limited": "none", "s.admin": "admin", "s.member": "user, not anonymous",
		"s.registers": "user, not anonymous"}
	for _, m := range regexp.MustCompile(
		`\tat\("([^"]+)", (?:(s\.(?:limited|user|member|registers|admin))\((?:([\w.]+), )?)?(?:optional\()?`+
			`(?:s\.(captcha)\(|withIDs?\((?:"\w+", )+(?:s\.knownUser\()?)?s\.(\w+)[,)]`).FindAllStringSubmatch(
		string(source), -1) {
		route, guard, before, captcha, handler := m[1], m[2], m[3], m[4], m[5]
		h, ok := methods[handler]
		if !ok {
			t.Fatalf("%s: no handler %s", route, handler)
		}
		name := guards[guard]
		if guard == "s.user" {
			name = map[string]string{"flow.Full": "user", "flow.ReadUser": "user, reading",
				"flow.AnyAudience": "user"}[before]
		}
		if captcha != "" {
			name = captcha
		}
		all := limits(h, map[string]bool{})
		if l := limitNames[before]; l != "" {
			all = append(all, l)
		}
		slices.Sort(all)
		all = slices.Compact(all)
		slices.SortStableFunc(all, func(a, b string) int {
			return strings.Index("OTP ANONYMOUS", a[:3]) - strings.Index("OTP ANONYMOUS", b[:3])
		})
		want = append(want, strings.Join([]string{route, h.file, name, strings.Join(all, ", ")}, " | "))
	}
	var got []string
	for _, m := range regexp.MustCompile(
		"(?m)^\\| `([A-Z]+ /[^`]*)` \\| \\[[\\w.]+\\]\\(([^)]+)\\) \\| ([^|]*) \\| ([^|]*)\\|").FindAllStringSubmatch(
		document(t, "docs/api.md"), -1) {
		got = append(got, strings.Join([]string{m[1], filepath.Join("docs", m[2]), m[3], strings.TrimSpace(m[4])},
			" | "))
	}
	if d := cmp.Diff(want, got); d != "" || len(want) < 20 {
		t.Error(d)
	}
}

// TestDocs_names: what a link calls by name stands in the file that it leads to.
func TestDocs_names(t *testing.T) {
	links := 0
	for page, text := range documents(t) {
		for _, m := range regexp.MustCompile("\\[`(\\w+)`\\]\\(([\\w/.]+\\.go)\\)").FindAllStringSubmatch(text, -1) {
			links++
			file := filepath.Join(filepath.Dir(page), m[2])
			if text, err := os.ReadFile(filepath.Join(daemonDir, file)); err != nil ||
				!regexp.MustCompile(`\b`+m[1]+`\b`).Match(text) {
				t.Errorf("%s: %s does not have %s (%v)", page, file, m[1], err)
			}
		}
	}
	if links < 20 {
		t.Fatalf("%d links", links)
	}
}

// section is what stands below a heading of a page, up to the next heading of any level.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	_, text, ok := strings.Cut(document(t, page), "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no %s", page, heading)
	}
	return regexp.MustCompile(`(?ms)^##.*`).ReplaceAllString(text, "")
}

// firstCells are the names in the first cells of the tables of a section.
func firstCells(t *testing.T, page, heading string) (names []string) {
	t.Helper()
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]*) \|`).FindAllStringSubmatch(section(t, page, heading), -1) {
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row[1], -1) {
			names = append(names, m[1])
		}
	}
	return names
}

func TestDocs_states(t *testing.T) {
	f := func(what string, want, got []string) {
		t.Helper()
		slices.Sort(want)
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" || len(want) == 0 {
			t.Errorf("%s: %s", what, d)
		}
	}
	f("kinds", matches(t, "internal/store/tokens.go", `(?m)^\tKind\w+ +(?:Kind )?= "(\w+)"`),
		firstCells(t, "docs/tokens.md", "## One-time tokens"))

	// Not every reason that there is a name for is given by this version.
	var given []string
	for _, dir := range []string{"internal/account", "internal/account/*", "internal/store"} {
		for _, path := range glob(t, dir+"/*.go") {
			if !strings.HasSuffix(path, "_test.go") {
				given = append(given, matches(t, path, `ended_reason = '(\w+)'`)...)
				given = append(given, matches(t, path, `then '(logout_\w+)'`)...)
				given = append(given, matches(t, path, `else '(logout)'`)...)
				for _, name := range matches(t, path, `(?:store\.|\+\s+)(Ended[A-Z]\w+)`) {
					given = append(given, matches(t, "internal/store/sessions.go", `(?m)^\t`+name+` +=? *"(\w+)"`)...)
				}
			}
		}
	}
	given = append(given, matches(t, "internal/store/sessions.go", `EndedSessionLimit = "(\w+)"`)...)
	slices.Sort(given)
	f("reasons", slices.Compact(given), firstCells(t, "docs/accounts.md", "## Sessions"))

	f("messages", matches(t, "../migrations/00004_outbox.sql", `'(pending|sent|failed|expired)'[,)]`),
		firstCells(t, "docs/mail.md", "## The outbox"))
}

// TestDocs_usage: the table lists the commands of the program's usage text.
func TestDocs_usage(t *testing.T) {
	_, help, _ := command(t, environment(""), "", "help")
	var want []string
	for _, m := range regexp.MustCompile(`(?m)auth \[?(serve|[a-z]+) ?([a-z|]*)`).FindAllStringSubmatch(help, -1) {
		want = append(want, strings.TrimSpace(m[1]+" "+m[2]))
	}
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `auth \\[?(serve|[a-z]+) ?([a-z|\\\\]*)").FindAllStringSubmatch(
		document(t, "docs/operations.md"), -1) {
		got = append(got, strings.TrimSpace(m[1]+" "+strings.ReplaceAll(m[2], `\`, "")))
	}
	if d := cmp.Diff(want, got); d != "" || len(want) < 8 {
		t.Error(d)
	}
}

// TestREADME_transcripts types the first examples against a daemon of its own. In an answer … stands for
// anything, and ids, times and tokens for others of their kind.
func TestREADME_transcripts(t *testing.T) {
	testdb.Program(t, "curl")
	d := start(t, environment(testdb.Postgres(t), "AUTH_JWT_ALGORITHM=RS256", "AUTH_SITE_NAME=Demo Shop",
		"AUTH_MAILER_SHOW=both"))
	there := strings.NewReplacer("http://127.0.0.1:8082", d.http, "http://127.0.0.1:8083", d.mailbox)
	back := strings.NewReplacer(d.http, "http://127.0.0.1:8082", d.mailbox, "http://127.0.0.1:8083",
		"http://localhost:9999", "http://127.0.0.1:8082")
	commands := 0
	for _, block := range regexp.MustCompile("(?s)\n```console\n(.*?)```\n").FindAllStringSubmatch(document(t,
		"README.md"), -1) {
		for command := range strings.SplitSeq(strings.TrimPrefix(block[1], "$ "), "\n$ ") {
			line, want, _ := strings.Cut(strings.TrimRight(command, "\n"), "\n")
			cmd := exec.Command("sh", "-c", there.Replace(line))
			cmd.Dir = d.dir
			out, err := cmd.CombinedOutput()
			if got := strings.TrimRight(back.Replace(string(out)), "\n"); err != nil || !alike(want).MatchString(got) {
				t.Errorf("$ %s\n it says:\n%s\n true is (%v):\n%s", line, want, err, got)
			}
			commands++
		}
	}
	if commands < 8 {
		t.Errorf("README.md has %d commands", commands)
	}
}

// alike returns a pattern that matches answers that differ only in values that change from run to run.
func alike(answer string) *regexp.Regexp {
	p := regexp.QuoteMeta(answer)
	for _, r := range [][2]string{
		{`[0-9a-f]{64}`, `[0-9a-f]{64}`},
		{`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, `[0-9a-f-]{36}`},
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\\\.\d{6}Z`, `[0-9-]{10}T[0-9:]{8}\.[0-9]{6}Z`},
		{`17\d{8}`, `[0-9]{10}`},
		{`…`, `.*`},
	} {
		p = regexp.MustCompile(r[0]).ReplaceAllLiteralString(p, r[1])
	}
	return regexp.MustCompile(`(?s)^` + p + `$`)
}
