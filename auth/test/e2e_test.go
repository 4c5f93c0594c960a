package test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/captcha/captchatest"
	"gatehouse/auth/internal/provider"
	"gatehouse/shared/fakeidp"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// oldestNode is what the client library requires (engines in its package.json).
const oldestNode = 22

// The real client library against the real daemon, behind a path as gateways have it: all cases with the
// default key and with HS256, then those that need other settings. The cases are e2e/*.mjs.
func TestClientLibrary(t *testing.T) {
	t.Parallel()
	node, modules := clientLibrary(t)
	f := func(name, script, algorithm string, settings ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runClient(t, node, modules, script, algorithm, testdb.Postgres(t), nil, settings)
		})
	}
	open := []string{"AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true", "AUTH_EXTERNAL_PHONE_ENABLED=true",
		"AUTH_SMS_MAX_FREQUENCY=0", "AUTH_MFA_PHONE_ENROLL_ENABLED=true", "AUTH_MFA_PHONE_VERIFY_ENABLED=true",
		"AUTH_MFA_RECOVERY_CODES_ENROLL_ENABLED=true", "AUTH_MFA_RECOVERY_CODES_VERIFY_ENABLED=true",
		"AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED=true", "AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED=true"}
	passkeys := []string{"AUTH_PASSKEY_ENABLED=true", "AUTH_WEBAUTHN_RP_ID=localhost",
		"AUTH_WEBAUTHN_RP_DISPLAY_NAME=Shop", "AUTH_WEBAUTHN_RP_ORIGINS=http://localhost:3000"}
	passkeys = slices.Clip(passkeys) // both are appended to by tests that run at once
	open = slices.Clip(append(open, passkeys...))
	f("RS256", "all.mjs", "RS256", append(open, "AUTH_JWT_ALGORITHM=")...) // unset: the default
	f("HS256", "all.mjs", "HS256", append(open, "AUTH_JWT_ALGORITHM=HS256")...)
	f("strict", "strict.mjs", "RS256", "AUTH_JWT_ALGORITHM=", "AUTH_SMTP_MAX_FREQUENCY=",
		"AUTH_SECURITY_UPDATE_PASSWORD_REQUIRE_REAUTHENTICATION=true",
		"AUTH_PASSWORD_REQUIRED_CHARACTERS=abcdefghijklmnopqrstuvwxyz:0123456789",
		"AUTH_RATE_LIMIT_HEADER=X-Client", "AUTH_RATE_LIMIT_TOKEN_REFRESH=3")
	f("autoconfirm", "autoconfirm.mjs", "RS256", append(open, "AUTH_JWT_ALGORITHM=", "AUTH_MAILER_AUTOCONFIRM=true")...)
	f("ES256", "claims.mjs", "ES256")
	f("late", "late.mjs", "ES256", append(passkeys, "AUTH_WEBAUTHN_CHALLENGE_EXPIRY_DURATION=1m",
		"AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED=true")...)
	f("prefix", "signup.mjs", "ES256", append(open, withoutGateway)...)
	t.Run("captcha", func(t *testing.T) {
		t.Parallel()
		captchas := captchatest.Start(t)
		runClient(t, node, modules, "captcha.mjs", "RS256", testdb.Postgres(t), nil,
			append(passkeys, "AUTH_JWT_ALGORITHM=", "AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true",
				"AUTH_SECURITY_CAPTCHA_ENABLED=true", "AUTH_SECURITY_CAPTCHA_SECRET="+captchatest.Secret,
				"AUTH_SECURITY_CAPTCHA_URL="+captchas.URL()))
	})
	t.Run("outage", func(t *testing.T) {
		t.Parallel()
		pg := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
		control := http.NewServeMux()
		control.HandleFunc("POST /postgres/kill", func(http.ResponseWriter, *http.Request) { pg.Kill() })
		control.HandleFunc("POST /postgres/restart", func(w http.ResponseWriter, r *http.Request) {
			if err := pg.Restart(r.Context()); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
		runClient(t, node, modules, "outage.mjs", "RS256", pg.PostgresURL("postgres"), control,
			[]string{"AUTH_JWT_ALGORITHM="})
	})
}

// withoutGateway has a script call the daemon itself.
const withoutGateway = "AUTH_API_PREFIX=/auth/v1"

// runClient starts a daemon, runs a script's cases against it and reports each as a subtest. control, if
// not nil, answers the script's requests that are not for the daemon.
func runClient(t *testing.T, node, modules, script, algorithm, database string, control http.Handler,
	settings []string) {
	var daemon atomic.Pointer[url.URL]
	routes := http.NewServeMux()
	routes.Handle("/auth/v1/", http.StripPrefix("/auth/v1", &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(daemon.Load()) },
	}))
	if control != nil {
		routes.Handle("/", control)
	}
	idp, err := fakeidp.Start(fakeidp.Options{})
	must.Succeed(t, err)
	defer idp.Close()
	routes.Handle("POST /idp/", http.StripPrefix("/idp", controlIDP(idp)))
	gateway := httptest.NewServer(routes)
	defer gateway.Close()
	base := gateway.URL + "/auth/v1"
	if slices.Contains(settings, withoutGateway) {
		ports, err := localserver.FreePorts(1)
		must.Succeed(t, err)
		base = "http://127.0.0.1:" + ports[0] + "/auth/v1"
		settings = append(settings, "PORT="+ports[0])
	}
	env := append(environment(database, "AUTH_API_EXTERNAL_URL="+base,
		"AUTH_API_MAX_REQUEST_DURATION=60s", "AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL=5m"),
		settings...) // slow machines are no failure
	env = append(env, providersAt(idp, base+"/callback")...)
	d := start(t, env)
	at, err := url.Parse(d.http)
	must.Succeed(t, err)
	daemon.Store(at)
	serviceKey := func(role string) string {
		t.Helper()
		status, out, errs := command(t, env, "", "keys", "service", "-role", role, "-exp", "1h")
		if status != 0 {
			t.Fatal(errs)
		}
		return strings.TrimSpace(out)
	}

	runScript(t, node, modules, script, "AUTH_URL="+base, "MAILBOX="+d.mailbox,
		"IDP="+gateway.URL+"/idp", "ALGORITHM="+algorithm, "CAPTCHA_SOLVED="+captchatest.Solved,
		"SERVICE_KEY="+serviceKey("service_role"), "ANON_KEY="+serviceKey("anon"))
}

// runScript runs a script of e2e in a node with these variables and reports each of its cases as a subtest.
func runScript(t *testing.T, node, modules, script string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	dir := clientFolder(t, modules)
	cmd := exec.CommandContext(ctx, node, "--test-reporter=./reporter.mjs", "--test-reporter-destination=stdout",
		script)
	cmd.Dir = dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}, env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	failed, cases := 0, 0
	for s := lineScanner(&stdout); s.Scan(); {
		var c struct {
			Name, Error string
			OK          bool
			MS          float64
		}
		if json.Unmarshal(s.Bytes(), &c) != nil {
			t.Logf("%s", s.Text()) // what a script prints
			continue
		}
		cases++
		t.Run(c.Name, func(t *testing.T) {
			t.Logf("%.0f ms", c.MS)
			if !c.OK {
				failed++
				t.Error(c.Error)
			}
		})
	}
	if err != nil && failed == 0 || cases == 0 {
		t.Errorf("%s: %v, %d cases\n%s", script, err, cases, stderr.String())
	}
}

// providersAt are settings of every provider, at a fake.
func providersAt(idp *fakeidp.Server, callback string) []string {
	env := []string{"AUTH_SECURITY_MANUAL_LINKING_ENABLED=true"}
	for _, name := range provider.Names() {
		p := "AUTH_EXTERNAL_" + strings.ToUpper(name) + "_"
		env = append(env, p+"ENABLED=true", p+"CLIENT_ID="+fakeidp.ClientID, p+"SECRET="+fakeidp.ClientSecret,
			p+"REDIRECT_URI="+callback, p+"URL="+idp.Base(name))
	}
	return env
}

// controlIDP lets a script choose the user that signs in at the fake, and gives out ID tokens.
func controlIDP(idp *fakeidp.Server) http.Handler {
	control := http.NewServeMux()
	control.HandleFunc("POST /user", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			User fakeidp.User
			Deny string
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		idp.SetUser(in.User)
		for _, name := range provider.Names() {
			idp.Behave(name, fakeidp.Behaviour{Deny: name == in.Deny})
		}
	})
	control.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Provider string
			User     fakeidp.User
			Claims   map[string]any
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		io.WriteString(w, idp.IDToken(in.Provider, in.User, in.Claims))
	})
	return control
}

// lineScanner reads lines of up to 4 MiB.
func lineScanner(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 4<<20)
	return s
}

// clientFolder is a folder of the test's own with the scripts and, as node_modules, a link to modules.
func clientFolder(t testing.TB, modules string) string {
	t.Helper()
	dir := t.TempDir()
	must.Succeed(t, os.CopyFS(dir, os.DirFS("e2e")))
	must.Succeed(t, os.Symlink(modules, filepath.Join(dir, "node_modules")))
	return dir
}

// clientLibrary installs what e2e/package-lock.json names, once for each version of it, and returns a
// node that is young enough and the folder node_modules. It lies in .run, outside of what the checks of
// the repository read. Without npm, or when it fails, the test is skipped; with REQUIRE_SERVERS=1 it fails.
func clientLibrary(t testing.TB) (node, modules string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: the client library comes over the network")
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		must.Have(t, fmt.Errorf("the client library comes through npm: %w", err))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	node = hostNode(ctx)
	args := []string{"ci", "--no-audit", "--no-fund", "--no-progress"}
	if node != "" {
		args = append(args, "--omit=optional") // that is node itself
	}

	sum := sha256.New()
	io.WriteString(sum, strings.Join(args, " "))
	files := map[string][]byte{}
	for _, name := range []string{"package.json", "package-lock.json"} {
		if files[name], err = os.ReadFile("e2e/" + name); err != nil {
			t.Fatal(err)
		}
		sum.Write(files[name])
	}
	root, err := filepath.Abs("../../.run/e2e")
	must.Succeed(t, err)
	dir := filepath.Join(root, hex.EncodeToString(sum.Sum(nil)[:8]))
	modules = filepath.Join(dir, "node_modules")
	if node == "" {
		node = filepath.Join(modules, "node", "bin", "node")
	}
	if _, err := os.Stat(dir); err == nil {
		return node, modules
	}

	// Installed next to its place and then moved there in one step: an install that was cut leaves nothing, two at
	// once don't meet.
	must.Succeed(t, os.MkdirAll(root, 0o755))
	part, err := os.MkdirTemp(root, "part-")
	must.Succeed(t, err)
	defer os.RemoveAll(part)
	for name, b := range files {
		must.Succeed(t, os.WriteFile(filepath.Join(part, name), b, 0o644))
	}
	cmd := exec.CommandContext(ctx, npm, args...)
	cmd.Dir = part
	if out, err := cmd.CombinedOutput(); err != nil {
		must.Have(t, fmt.Errorf("npm ci: %w\n%s", err, out))
	}
	if in := strings.Replace(node, dir, part, 1); nodeVersion(ctx, in) < oldestNode {
		must.Have(t, fmt.Errorf("npm ci left no node of at least %d at %s", oldestNode, in))
	}
	if err := os.Rename(part, dir); err != nil && !errors.Is(err, os.ErrExist) {
		if _, there := os.Stat(dir); there != nil { // another run was first
			t.Fatal(err)
		}
	}
	return node, modules
}

// hostNode is this machine's node; "" when there is none or it is too old.
func hostNode(ctx context.Context) string {
	path, err := exec.LookPath("node")
	if err != nil || nodeVersion(ctx, path) < oldestNode {
		return ""
	}
	return path
}

// nodeVersion is the major version, 0 when it cannot be known.
func nodeVersion(ctx context.Context, path string) int {
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil {
		return 0
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(string(out), "v"), ".")
	n, _ := strconv.Atoi(major)
	return n
}
