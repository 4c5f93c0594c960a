package test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// verifyByIssuer is the example of docs/tokens.md.
func verifyByIssuer(ctx context.Context, issuer, bearer string) (string, error) {
	provider, err := oidc.NewProvider(ctx, issuer) // once
	if err != nil {
		return "", err
	}
	verifier := provider.Verifier(&oidc.Config{ClientID: "authenticated"})
	token, err := verifier.Verify(ctx, bearer) // token.Subject is the user
	if err != nil {
		return "", err
	}
	return token.Subject, nil
}

// TestResourceServers: services that know only the issuer check a token, in Go and in Node as docs/tokens.md says,
// before and after a rotation; auth check says whether they find the keys.
func TestResourceServers(t *testing.T) {
	t.Parallel()
	node, modules := clientLibrary(t)
	ports, err := localserver.FreePorts(1)
	must.Succeed(t, err)
	issuer := "http://127.0.0.1:" + ports[0]
	env := environment(testdb.Postgres(t), "PORT="+ports[0], "AUTH_API_EXTERNAL_URL="+issuer, "AUTH_JWT_ALGORITHM=")
	const warning = "services that know only the issuer do not find the keys"
	if _, out, _ := command(t, env, "", "check"); strings.Contains(out, warning) { // no table yet, no question
		t.Errorf("before the first start:\n%s", out)
	}
	d := start(t, env)
	for _, c := range []struct {
		setting string
		warned  bool
	}{{"A=b", false}, {"AUTH_JWT_ISSUER=shop", true}, {"AUTH_JWT_ISSUER=" + issuer + "/x", true}} {
		if _, out, errs := command(t, append(env, c.setting), "", "check"); strings.Contains(out, warning) != c.warned {
			t.Errorf("%s:\n%s%s", c.setting, out, errs)
		}
	}
	page := document(t, "docs/tokens.md")
	_, script, _ := strings.Cut(page, "```js\n")
	script, _, _ = strings.Cut(script, "```")
	script = strings.Replace(script, "https://auth.example.com", issuer, 1)
	dir := clientFolder(t, modules)
	path := filepath.Join(dir, "resource.mjs")
	script = "const token = process.argv[2]\n" + script + "\nconsole.log(payload.sub)\n"
	must.Succeed(t, os.WriteFile(path, []byte(script), 0o600))
	source, err := os.ReadFile("resource_test.go")
	must.Succeed(t, err)
	_, lines, _ := strings.Cut(page, "```go\n")
	lines, _, _ = strings.Cut(lines, "```")
	for line := range strings.Lines(strings.Replace(lines, `"https://auth.example.com"`, "issuer", 1)) {
		if !strings.Contains(string(source), "\t"+line) {
			t.Errorf("docs/tokens.md: verifyByIssuer has no line %s", line)
		}
	}
	verify := func(session answer) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		user, _ := session.body["user"].(map[string]any)
		if got, err := verifyByIssuer(ctx, issuer, session.str("access_token")); err != nil || got != user["id"] {
			t.Errorf("Go: %s, %v", got, err)
		}
		out, err := exec.CommandContext(ctx, node, path, session.str("access_token")).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != user["id"] {
			t.Errorf("Node: %s, %v", out, err)
		}
	}
	session := d.signUp(t, "ann@example.org")
	verify(session)
	_, listed, _ := command(t, env, "", "keys", "list")
	first := strings.Fields(strings.Split(listed, "\n")[1])[0]
	if status, _, errs := command(t, env, "", "keys", "revoke", first); status != 0 { // another key signs at once
		t.Fatal(errs)
	}
	await.True(t, "the key is gone", func() bool {
		return !strings.Contains(d.want(t, 200, "GET", "/.well-known/jwks.json", "", "").text, first)
	})
	if _, err := verifyByIssuer(t.Context(), issuer, session.str("access_token")); err == nil {
		t.Error("a token of a revoked key counts")
	}
	session = d.want(t, 200, "POST", "/token?grant_type=refresh_token", "",
		`{"refresh_token":"`+session.str("refresh_token")+`"}`)
	verify(session)
}
