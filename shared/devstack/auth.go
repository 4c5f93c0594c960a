package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"gatehouse/shared/fakeidp"
	"gatehouse/shared/localserver"
	"gatehouse/shared/subprocess"
)

// auth is the running auth daemon with its PostgreSQL, which is empty at each start.
type auth struct {
	process       *subprocess.Process
	postgres      *localserver.Server
	program       string
	home          string          // the daemon's working directory, with its log, its secret and the developer's .env
	provider      *fakeidp.Server // signs users in without accounts
	http, mailbox string          // addresses of the daemon and of the mailbox, as host:port
	console       string          // address of the admin console, as host:port
	password      string          // password of the console's administrator
	demo          *demo
	settings      string // path of the file with all settings
	admin, anon   string // service tokens: of the admin, and of clients without a user
}

// startAuth starts the auth daemon and everything it needs, and returns when the daemon is ready.
func startAuth(ctx context.Context, bin, dir string, limits *ratelimit, out io.Writer) (a *auth, err error) {
	a = &auth{demo: &demo{ratelimit: "http://" + limits.http}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("auth: %w", err), a.stop())
		}
	}()
	if a.program, err = filepath.Abs(filepath.Join(bin, "auth")); err != nil {
		return a, err
	}
	if _, err = os.Stat(a.program); err != nil { // check now, before waiting a second for PostgreSQL
		return a, fmt.Errorf("%w (make build makes it)", err)
	}
	if a.home, err = filepath.Abs(filepath.Join(dir, "auth")); err != nil {
		return a, err
	}
	if err = os.MkdirAll(a.home, 0o700); err != nil {
		return a, err
	}
	var idp string
	for _, l := range []struct {
		name string
		port int
		addr *string
	}{{"auth", 8082, &a.http}, {"the mailbox", 8083, &a.mailbox}, {"the fake identity provider", 8084, &idp},
		{"the admin console", 8085, &a.console}, {"the demo", 3000, &a.demo.addr}} {
		if *l.addr, err = freeAddr(l.port); err != nil {
			return a, fmt.Errorf("%s: %w", l.name, err)
		}
		if want := loopback(l.port); *l.addr != want {
			fmt.Fprintf(out, "%s is busy: %s listens on %s\n", want, l.name, *l.addr)
		}
	}
	if a.provider, err = fakeidp.Start(fakeidp.Options{Addr: idp, Interactive: true}); err != nil {
		return a, err
	}
	if a.postgres, err = localserver.Postgres(ctx, localserver.PostgresOptions{}); err != nil {
		return a, fmt.Errorf("PostgreSQL: %w", err)
	}
	link := filepath.Join(dir, "postgres")
	if err = errors.Join(os.RemoveAll(link), os.Symlink(a.postgres.Dir(), link)); err != nil {
		return a, err
	}
	if err = a.writeSettings(); err != nil {
		return a, err
	}
	a.demo.auth = "http://" + a.http
	a.demo.page = demoPage{API: a.demo.auth + "/auth/v1", Mailbox: "http://" + a.mailbox, Rules: limits.rules,
		Console: "http://" + a.console}
	if err = a.demo.start(); err != nil {
		return a, err
	}
	return a, a.launch(ctx, out)
}

// launch starts the daemon, has it issue both service tokens, and creates the console's administrator. The daemon's log
// is written to a file, since it has a line for each request.
func (a *auth) launch(ctx context.Context, out io.Writer) error {
	path := filepath.Join(a.home, "log")
	log, err := os.Create(path)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := a.command(context.WithoutCancel(ctx), "serve") // WithoutCancel, since the daemon is stopped by a signal
	cmd.Stdout, cmd.Stderr = log, log
	if a.process, err = subprocess.Start(cmd); err != nil {
		return err
	}
	if err := awaitReady(ctx, a.process, "http://"+a.http+"/readyz"); err != nil {
		text, _ := os.ReadFile(path) // the log says more about the reason than err
		fmt.Fprintf(out, "%s", text)
		return err
	}
	for role, into := range map[string]*string{"service_role": &a.admin, "anon": &a.anon} {
		cmd := a.command(ctx, "keys", "service", "-role", role)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		text, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("keys service: %w: %s", err, errs.Bytes())
		}
		*into = strings.TrimSpace(string(text))
	}
	a.password = rand.Text()
	create := a.command(ctx, "admin", "create", "-admin", "-confirm", administrator, "-")
	create.Stdin = strings.NewReader(a.password + "\n")
	if text, err := create.CombinedOutput(); err != nil {
		return fmt.Errorf("admin create: %w: %s", err, text)
	}
	return nil
}

// administrator is the address of the user who may sign in to the console.
const administrator = "admin@example.org"

// command returns a command that runs the auth program with the settings file, and with no settings in its environment.
func (a *auth) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, a.program, append([]string{"-config", a.settings}, args...)...)
	cmd.Dir, cmd.Env = a.home, passedOn("PATH", "HOME", "LOG_LEVEL")
	return cmd
}

// named matches a line of a settings file that sets a variable, and finds the variable's name.
var named = regexp.MustCompile(`(?m)^[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=`)

// writeSettings writes a file with all settings: first the settings that make run needs, then the settings in .env in
// the daemon's folder, which take precedence. The limits on mails are turned off, since the mailbox sends nothing.
func (a *auth) writeSettings() error {
	secret := filepath.Join(a.home, "secret")
	if err := writeOnce(secret, rand.Text()+rand.Text()+"\n"); err != nil {
		return err
	}
	dotEnvFile := filepath.Join(a.home, ".env")
	if err := writeOnce(dotEnvFile, dotEnv); err != nil {
		return err
	}
	own, err := os.ReadFile(dotEnvFile)
	if err != nil {
		return err
	}
	host, port, _ := net.SplitHostPort(a.http) // loopback has made the address, so it is valid
	_, mailboxPort, _ := net.SplitHostPort(a.mailbox)
	set := append([]string{
		"AUTH_API_HOST=" + host, "AUTH_API_PORT=" + port, "AUTH_API_EXTERNAL_URL=http://" + a.http,
		"AUTH_SITE_URL=" + a.demo.site(), "AUTH_API_PREFIX=/auth/v1", "AUTH_SITE_NAME=Demo Shop", "AUTH_MAILER_SHOW=both",
		"AUTH_DB_DRIVER=postgres", "DATABASE_URL=" + a.postgres.PostgresURL("postgres"),
		"AUTH_JWT_SECRET_FILE=" + secret, "AUTH_SECRET_KEY_FILE=" + secret,
		"AUTH_CONSOLE_ADDR=" + a.console, "AUTH_DEV_MAILBOX=true", "AUTH_DEV_MAILBOX_PORT=" + mailboxPort,
		"AUTH_SMTP_MAX_FREQUENCY=0",
		"AUTH_SMS_MAX_FREQUENCY=0",
		"AUTH_RATE_LIMIT_EMAIL_SENT=1000000", "AUTH_RATE_LIMIT_SMS_SENT=1000000", "AUTH_RATE_LIMIT_SMS_PER_NUMBER=0",
		"AUTH_EXTERNAL_PHONE_ENABLED=true", "AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true", "AUTH_LOG_FORMAT=text",
	}, a.providers()...)
	for _, m := range named.FindAllSubmatch(own, -1) {
		set = slices.DeleteFunc(set, func(s string) bool { return strings.HasPrefix(s, string(m[1])+"=") })
	}
	a.settings = filepath.Join(a.home, "settings")
	os.Remove(a.settings) // remove a file of an earlier run, which may have another mode
	text := "# Written by make run at each start: its own settings, then those of .env.\n" + strings.Join(set, "\n") + "\n"
	return os.WriteFile(a.settings, append([]byte(text), own...), 0o600)
}

// providers returns the settings of two providers that the fake identity provider serves: one of plain OpenID Connect,
// and GitHub.
func (a *auth) providers() []string {
	env := []string{
		"AUTH_EXTERNAL_OIDC_LOCAL_ISSUER=" + a.provider.Base("oidc"),
		"AUTH_EXTERNAL_GITHUB_ENABLED=true", "AUTH_EXTERNAL_GITHUB_URL=" + a.provider.Base("github"),
	}
	for _, prefix := range []string{"AUTH_EXTERNAL_OIDC_LOCAL_", "AUTH_EXTERNAL_GITHUB_"} {
		env = append(env, prefix+"CLIENT_ID="+fakeidp.ClientID, prefix+"SECRET="+fakeidp.ClientSecret,
			prefix+"REDIRECT_URI=http://"+a.http+"/callback")
	}
	return env
}

// signInLink returns a link that signs a user in through the fake identity provider and ends at the demo.
func (a *auth) signInLink(provider string) string {
	return "http://" + a.http + "/authorize?provider=" + provider + "&redirect_to=" + url.QueryEscape(a.demo.site()+"/")
}

// dotEnv is the content that .env has after the first start.
const dotEnv = `# Further settings of the auth daemon that make run starts, NAME=value, one a line. They win over those that make
# run sets itself. The next start of make run puts them in force.
# AUTH_MAILER_AUTOCONFIRM=true
`

// writeOnce creates a file unless it exists. So an edited .env is not overwritten, and the secret stays the same, so
// that service tokens of earlier runs remain valid.
func writeOnce(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (a *auth) stop() error {
	a.demo.stop()
	var err error
	if a.process != nil {
		if err = a.process.Stop(stopTime); err != nil {
			err = fmt.Errorf("auth: %w", err)
		}
	}
	if a.postgres != nil {
		a.postgres.Close()
	}
	if a.provider != nil {
		a.provider.Close()
	}
	return err
}

// introduce prints where the daemon listens, and commands that a developer can copy and run as they are, one after the
// other.
func (a *auth) introduce(out io.Writer, dir string) {
	session := filepath.Join(dir, "auth", "session.json")
	field := func(name string) string {
		return `$(sed 's/.*"` + name + `":"\([^"]*\)".*/\1/' ` + session + `)`
	}
	bearer := `-H "Authorization: Bearer ` + field("access_token") + `"`
	const ann = "ann@example.org"
	fmt.Fprintf(out, `
demo        %[14]s   an application with all of it: open it in a browser
auth        http://%[1]s   mailbox http://%[2]s   PostgreSQL, empty at each start: psql '%[3]s'
console     http://%[17]s   administrator %[18]s, password %[19]s

With supabase-js: createClient('http://%[1]s', '<ANON_KEY from below>')
Sign up, and look at the mail (the page at http://%[2]s shows it too):
  curl -s http://%[1]s/signup -d '{"email":"%[4]s","password":"correct horse"}'
  curl -s 'http://%[2]s/messages?to=%[4]s&wait=10'
Confirm the address with the code in it, and keep the session:
  curl -s http://%[1]s/verify -d "{\"type\":\"signup\",\"email\":\"%[4]s\",\"token\":\"$(curl -s 'http://%[2]s/latest/code?to=%[4]s')\"}" -o %[5]s; cat %[5]s
Who is it:
  curl -s http://%[1]s/user %[6]s
Refresh, and keep the new session:
  curl -s 'http://%[1]s/token?grant_type=refresh_token' -d "{\"refresh_token\":\"%[7]s\"}" -o %[5]s; cat %[5]s
Sign out everywhere:
  curl -i -X POST 'http://%[1]s/logout?scope=global' %[6]s

Sign in with the local fake provider: open in a browser, choose who to be, and arrive at the demo
  %[12]s
The same as GitHub does it:
  %[13]s

Service tokens (role service_role for administrators' programs, anon for browsers):
  SERVICE_ROLE_KEY=%[8]s
  ANON_KEY=%[9]s
An administrator's list of users:
  curl -s http://%[1]s/admin/users -H 'Authorization: Bearer %[8]s'
Every command works with the settings of this daemon, for example:
  %[15]s -config %[16]s admin list

The limits on mails and SMS are lifted here. Log: %[10]s. Further settings: %[11]s.
`, a.http, a.mailbox, a.postgres.PostgresURL("postgres"), ann, session, bearer, field("refresh_token"), a.admin, a.anon,
		filepath.Join(dir, "auth", "log"), filepath.Join(dir, "auth", ".env"), a.signInLink("local"),
		a.signInLink("github"), a.demo.site(), a.program, a.settings, a.console, administrator, a.password)
}
