package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"gatehouse/auth/internal/config"
	"gatehouse/auth/internal/daemon"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/logging"
)

// mirror runs the command "auth mirror".
func (p *program) mirror(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return p.misusedGroup("mirror")
	}
	verb, args := args[0], args[1:]
	f := flag.NewFlagSet("mirror "+verb, flag.ContinueOnError)
	var o mirror.Options
	var try, asJSON, yes bool
	var question string
	switch verb {
	case "install":
		f.BoolFunc("sessions", "mirror sessions too", func(text string) error {
			on, err := strconv.ParseBool(text)
			o.Sessions = &on
			return err
		})
		f.Func("sign-ins", "write last_sign_in_at at each sign-in (all), or once a day (day)", func(text string) error {
			days := text == "day"
			if o.Days = &days; !days && text != "all" {
				return errors.New("want all or day")
			}
			return nil
		})
		question = "This makes triggers on the tables there and here, and changes rows there to what they are here."
	case "drop":
		question = "This removes the mirror: the tables there are no longer kept current."
	case "scrub":
		question = "This removes hashes, tokens and secrets there: there is no way back after it."
	case "check":
		f.BoolVar(&try, "try", false, "make users of five kinds and undo it")
		f.BoolVar(&asJSON, "json", false, "one JSON object")
	default:
		fmt.Fprintf(p.stderr, "auth: mirror: there is no %q\n", verb)
		return p.misusedGroup("mirror")
	}
	if question != "" {
		f.BoolVar(&o.SQL, "sql", false, "print the statements and run none")
		f.BoolVar(&yes, "yes", false, "without a question")
	}
	if _, err := p.parse(f, args, "[flags]", 0, 0); err != nil {
		return err
	}
	if question != "" && !o.SQL && !yes {
		if err := p.confirm("mirror: "+verb, question, verb); err != nil {
			return err
		}
	}
	return p.runMirror(ctx, &o, func() error {
		switch verb {
		case "install":
			return mirror.Install(ctx, o)
		case "drop":
			return mirror.Drop(ctx, o)
		case "scrub":
			return mirror.Scrub(ctx, o)
		}
		return mirror.Check(ctx, o, try, asJSON)
	})
}

// runMirror sets the options of a mirror from the settings, and calls run.
func (p *program) runMirror(ctx context.Context, o *mirror.Options, run func() error) error {
	c, l, _, err := p.load()
	if err != nil {
		return err
	}
	log := daemon.NewLogger(p.stderr, config.Log{Level: "warn", Format: "text"}).Logger
	if o.DB, err = daemon.OpenStore(ctx, c.StoreOptions(log), 0); err != nil {
		return err
	}
	defer o.DB.Close()
	if err := checkTables(ctx, o.DB); err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	setMirror(o, &c, &l)
	o.Out, o.Log = p.stdout, p.stderr
	switch err := run(); {
	case errors.Is(err, mirror.ErrRefused), errors.Is(err, mirror.ErrDiffers):
		return errSaid
	case err != nil:
		return fmt.Errorf("mirror: %s", logging.HideCredentials(err.Error()))
	}
	return nil
}

// checkTables returns an error if this program needs a newer schema, or if there is no schema, which happens if
// DATABASE_URL names another database or schema.
func checkTables(ctx context.Context, db *store.DB) error {
	lacking := daemon.CheckMigrated(ctx, db)
	if lacking == nil {
		return nil
	}
	if n, err := db.Pending(ctx); err != nil || n < store.Migrations() {
		return lacking
	}
	at, err := db.Location(ctx)
	return cmp.Or(err, fmt.Errorf("schema %q of the database has no tables of this program: does DATABASE_URL name the "+
		"daemon's database?", at.Schema))
}

// setMirror sets the options of a mirror from the settings.
func setMirror(o *mirror.Options, c *config.Config, l *config.Live) {
	o.URL = cmp.Or(c.Takeover.SourceURL, c.DB.URL)
	o.Namespace, o.AdminRoles = c.DB.Store.Namespace, l.Accounts.AdminRoles
}

// mirror checks whether the functions and triggers of a mirror are as the command "auth mirror install" makes them.
func (r *report) mirror(ctx context.Context, db *store.DB, c *config.Config, l *config.Live) {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	o := mirror.Options{DB: db}
	setMirror(&o, c, l)
	o.URL = c.DB.URL // the role that installed the mirror may no longer exist, or this role may no longer be its member
	m, err := db.Mirror(ctx)
	var wrong, doubts []string
	if err == nil {
		wrong, doubts, err = mirror.Look(ctx, o, m.Installed)
	}
	for _, text := range doubts {
		fmt.Fprintln(r.p.stdout, "warn  mirror:", text)
	}
	if err == nil && len(wrong) > 0 {
		err = fmt.Errorf("%s; auth mirror install makes it again, auth mirror drop removes it", strings.Join(wrong, "; "))
	}
	if err != nil || m.Installed {
		r.say("mirror", err)
	}
}
