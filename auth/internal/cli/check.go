package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/daemon"
	"gatehouse/auth/internal/keys"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/sms"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/logging"
	"gatehouse/shared/settings"
)

// checkPatience is the time limit of each test of the command "auth check".
const checkPatience = 15 * time.Second

// report prints what "auth check" finds, and counts the failures.
type report struct {
	p      *program
	failed int
}

func (r *report) say(what string, err error) bool {
	if err != nil {
		r.failed++
		fmt.Fprintf(r.p.stdout, "FAIL  %s: %s\n", what,
			strings.TrimPrefix(logging.HideCredentials(err.Error()), what+": "))
		return false
	}
	fmt.Fprintf(r.p.stdout, "ok    %s\n", what)
	return true
}

// try runs a test with the time limit checkPatience, and prints its result.
func (r *report) try(ctx context.Context, what string, test func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	r.say(what, test(ctx))
}

// check runs the command "auth check", which finds everything that a start of the daemon would report, and more. It
// changes nothing.
func (p *program) check(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("check", flag.ContinueOnError)
	tryHooks := f.Bool("hooks", false, "call the hooks in PostgreSQL with a sample, and roll back what they did")
	if _, err := p.parse(f, args, "[-hooks]", 0, 0); err != nil {
		return err
	}
	r := &report{p: p}
	c, l, read, err := p.read()
	for _, w := range read.Warnings {
		fmt.Fprintln(p.stdout, "warn ", w)
	}
	if doubt := c.ShortPasswords(); doubt != "" && !read.IsSet("AUTH_PASSWORD_MIN_LENGTH") {
		fmt.Fprintln(p.stdout, "warn ", doubt)
	}
	if r.say("settings", err) {
		if w := daemon.HashMemory(l.Hash, c.Password.Workers); w != "" {
			fmt.Fprintln(p.stdout, "warn ", w)
		}
		r.say(fmt.Sprintf("redirects: %s and %d patterns", c.General.SiteURL, len(c.General.AllowList)), nil)
		db, migrated := r.database(ctx, &c)
		if db != nil {
			defer db.Close()
		}
		if migrated {
			r.defaults(ctx, db, &l)
			r.mirror(ctx, db, &c, &l)
			r.try(ctx, "signing keys", keys.New(keys.Options{DB: db, Root: c.Root()}, l.Keys).Check)
			r.discovery(ctx, &c)
		} else { // warnings that follow from old names of settings do not need the tables
			r.tellDefaults(l.FormerDefaults(false, 0))
		}
		r.providers(ctx, l)
		if l.SMTP != nil {
			r.try(ctx, "SMTP server", l.SMTP.Check)
		}
		r.templates(ctx, &c, l)
		r.outbound(ctx, l)
		r.hooks(ctx, &c, &l, db, *tryHooks)
	}
	if r.failed > 0 {
		return fmt.Errorf("%d of the checks failed", r.failed)
	}
	return nil
}

// database opens the database. db is nil if the database does not answer; migrated says whether the tables can be
// queried.
func (r *report) database(ctx context.Context, c *config.Config) (db *store.DB, migrated bool) {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	db, err := daemon.OpenStore(ctx, c.StoreOptions(slog.New(slog.DiscardHandler)), 0)
	if !r.say("database answers", err) {
		return nil, false
	}
	r.say("database keeps prepared statements", db.CheckPooler(ctx))
	if err := daemon.CheckSchema(ctx, db); err != nil {
		r.say("database schema", err)
		return db, false
	}
	n, errPending := db.Pending(ctx)
	missing, migrating, err := db.MissingRights(ctx)
	if len(migrating) > 0 && n == 0 && errPending == nil {
		fmt.Fprintf(r.p.stdout, "warn  the next version's migrations would need: %s\n", strings.Join(migrating, "; "))
	} else {
		missing = append(missing, migrating...)
	}
	if err == nil && len(missing) > 0 {
		err = errors.New(strings.Join(missing, "; "))
	}
	r.say("database rights", err)
	r.readers(ctx, db)
	if r.say("database schema", errPending) && n > 0 {
		fmt.Fprintf(r.p.stdout, "warn  %d migrations are still to be applied: a start does that, or auth migrate\n", n)
		return db, false
	}
	return db, true
}

// readers warns of other roles that have rights to the daemon's tables.
func (r *report) readers(ctx context.Context, db *store.DB) {
	list, err := db.Readers(ctx)
	if err != nil {
		r.say("database grants", err)
	}
	for _, one := range list {
		fmt.Fprintf(r.p.stdout, "warn  role %s may read or write table %s: revoke all on %s from %s\n",
			one.Role, one.Tables[0], strings.Join(one.Tables, ", "), one.Role)
	}
}

// defaults warns of settings whose defaults differ from those of supabase/auth, and prints the lines of .env that
// restore the defaults of supabase/auth.
func (r *report) defaults(ctx context.Context, db *store.DB, l *config.Live) {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	var list []config.FormerDefault
	m, err := db.Takeover(ctx)
	if err == nil {
		list, err = daemon.FormerDefaults(ctx, db, l, m)
	}
	if err != nil {
		r.say("takeover", err)
		return
	}
	r.tellDefaults(list)
}

func (r *report) tellDefaults(list []config.FormerDefault) {
	for _, d := range list {
		fmt.Fprintln(r.p.stdout, "warn ", d.Text)
	}
	for _, d := range list {
		fmt.Fprintln(r.p.stdout, d.Line)
	}
}

// discovery warns if services that know only the issuer would not find the keys.
func (r *report) discovery(ctx context.Context, c *config.Config) {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	if err := findKeys(ctx, c.JWT.Issuer); err != nil {
		fmt.Fprintf(r.p.stdout, "warn  AUTH_JWT_ISSUER: services that know only the issuer do not find the keys: %v\n", err)
	}
}

// findKeys fetches the discovery document and the keys as a service that verifies tokens does.
func findKeys(ctx context.Context, issuer string) error {
	if u, err := url.Parse(issuer); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return fmt.Errorf("%q is no URL", issuer)
	}
	at := strings.TrimSuffix(issuer, "/") + "/.well-known/openid-configuration"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var found struct{ Issuer string }
	err = json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&found)
	switch {
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s answers %s", at, resp.Status)
	case err != nil:
		return fmt.Errorf("%s: %w", at, err)
	case found.Issuer != issuer:
		return fmt.Errorf("%s names the issuer %q", at, found.Issuer)
	}
	return nil
}

// providers begins a sign-in with each external provider that is on. This fails if the provider's endpoints or its
// request token must be fetched and cannot be. For other providers it sends nothing.
func (r *report) providers(ctx context.Context, l config.Live) {
	set, err := provider.New(l.External)
	if err != nil {
		return // reported already
	}
	defer set.Close()
	for _, name := range set.Names() {
		p, err := set.Lookup(name)
		if err != nil {
			continue // it accepts only native ID tokens
		}
		r.try(ctx, "provider "+name, func(ctx context.Context) error {
			_, err := p.Begin(ctx, provider.Start{State: "check"})
			if e, ok := errors.AsType[*provider.Error](err); ok && e.Status < 500 {
				err = nil // a parameter is missing that applications would give
			}
			return err
		})
	}
}

// templates tests the operator's mail templates. The daemon would replace broken ones by the built-in texts.
func (r *report) templates(ctx context.Context, c *config.Config, l config.Live) {
	if c.Site.Name != "" && c.SMTP.SenderName == "" && l.SMTP != nil {
		fmt.Fprintln(r.p.stdout, "warn  AUTH_SITE_NAME is set and AUTH_SMTP_SENDER_NAME is not: mails show the sender's "+
			"address alone")
	}
	if len(l.Mail.Templates) == 0 && len(l.Mail.Subjects) == 0 && l.Mail.Folder == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	m := mail.NewRenderer(mail.RendererOptions{Log: slog.New(slog.DiscardHandler)})
	m.Apply(l.Mail)
	loaded := m.Load(ctx)
	broken, doubts := m.Lint(ctx)
	r.say("mail templates", errors.Join(append([]error{l.Mail.Check(), loaded}, broken...)...))
	for _, d := range doubts {
		near := settings.Nearest(d.Unknown, d.Known)
		if near != "" {
			near = "; did you mean " + near + "?"
		}
		fmt.Fprintf(r.p.stdout, "warn  %s: %s%s\n", d.Where, d.Text, near)
	}
}

// outbound queries the SMS gateway about the operator's account, and the captcha provider about a captcha that is not
// solved. Missing settings are among the warnings.
func (r *report) outbound(ctx context.Context, l config.Live) {
	for _, doubt := range l.SMS.Lint() {
		fmt.Fprintln(r.p.stdout, "warn ", doubt)
	}
	if g := sms.New(l.SMS); g != nil {
		r.try(ctx, "SMS gateway: "+g.String(), g.Check)
		g.Close()
	}
	if v := l.API.Captcha; v != nil {
		r.try(ctx, "captcha: "+v.String(), v.Check)
	}
}
