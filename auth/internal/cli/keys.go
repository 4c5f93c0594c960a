package cli

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"gatehouse/auth/internal/token"
)

// keys runs the command "auth keys".
func (p *program) keys(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return p.misusedGroup("keys")
	}
	what, args := args[0], args[1:]
	f := flag.NewFlagSet("keys "+what, flag.ContinueOnError)
	switch what {
	case "service":
		return p.keysService(ctx, f, args)
	case "list", "rotate":
		if _, err := p.parse(f, args, "", 0, 0); err != nil {
			return err
		}
		args = nil
	case "revoke":
		if len(args) == 1 && len(args[0]) > len("--help") {
			args = []string{"--", args[0]} // one kid in 64 begins with a dash but is not a flag
		}
		var err error
		if args, err = p.parse(f, args, "KID", 1, 1); err != nil {
			return err
		}
	default:
		return p.misusedGroup("keys")
	}
	r, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	switch what {
	case "rotate":
		k, err := r.keeper.Rotate(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.stdout, "%s (%s) is published and signs from %s\n", k.KID, k.Algorithm, clock(k.SignsAt))
		return nil
	case "revoke":
		fresh, err := r.keeper.Revoke(ctx, args[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(p.stdout, "%s is revoked\n", args[0])
		if fresh != nil {
			fmt.Fprintf(p.stdout, "%s (%s) signs now; who caches keys may refuse its tokens for up to 20 minutes\n",
				fresh.KID, fresh.Algorithm)
		}
		return nil
	}
	return p.keysList(ctx, r)
}

func (p *program) keysList(ctx context.Context, r *rooms) error {
	list, err := r.keeper.List(ctx)
	if err != nil {
		return err
	}
	t := table(p.stdout, "KID", "ALGORITHM", "STATE", "CREATED", "SIGNS FROM", "REVOKED")
	for _, k := range list {
		t.row(k.KID, k.Algorithm, k.State, clock(k.CreatedAt), clock(k.SignsAt), clock(k.RevokedAt))
	}
	return t.Flush()
}

// keysService signs a token for a service, without a user. If JWT_SECRET signs it, no database is needed.
func (p *program) keysService(ctx context.Context, f *flag.FlagSet, args []string) error {
	role := f.String("role", "service_role",
		"`role` claim: service_role for administrators' programs, anon for browsers")
	life := f.String("exp", "10y", "life: y, d, or a Go `duration`")
	if _, err := p.parse(f, args, "[-role ROLE] [-exp LIFE]", 0, 0); err != nil {
		return err
	}
	if *role == "" {
		return p.misused(f, "-role needs a role")
	}
	exp, err := parseLife(*life)
	if err != nil {
		return fmt.Errorf("-exp %s: %w", *life, err)
	}
	c, l, _, err := p.load()
	if err != nil {
		return err
	}
	var set *token.Set
	now := time.Now() // without a database, the time is this machine's
	if c.Keys.AcceptSecret {
		set, err = token.NewSet(token.SetConfig{Secret: l.Keys.Secret, AcceptSecret: true, SignWithSecret: true,
			Issuer: c.JWT.Issuer})
	} else {
		var r *rooms
		if r, err = p.open(ctx); err != nil {
			return err
		}
		defer r.close()
		err = r.keeper.Start(ctx)
		set, now = r.keeper.Live().Load(), r.now()
	}
	if err != nil {
		return err
	}
	text, err := set.SignService(nil, *role, c.JWT.Issuer, now, now.Add(exp))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "%s\n", text)
	return err
}

const day = 24 * time.Hour

// parseLife parses a duration such as 10y or 90d, or a Go duration. A year has 365 days.
func parseLife(text string) (time.Duration, error) {
	unit := time.Duration(0)
	switch {
	case strings.HasSuffix(text, "y"):
		unit = 365 * day
	case strings.HasSuffix(text, "d"):
		unit = day
	}
	if unit == 0 {
		d, err := time.ParseDuration(text)
		if err == nil && d <= 0 {
			err = fmt.Errorf("must be more than 0")
		}
		return d, err
	}
	n, err := strconv.Atoi(text[:len(text)-1])
	if err != nil || n <= 0 || n > 36500 {
		return 0, fmt.Errorf("not a life such as 10y, 90d or 12h")
	}
	if unit > day && n > 100 {
		return 0, fmt.Errorf("at most 100y")
	}
	return time.Duration(n) * unit, nil
}

// clock formats a time for people; "-" for the zero time.
func clock(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// columns writes a table whose columns are as wide as their contents.
type columns struct{ *tabwriter.Writer }

func table(w io.Writer, heads ...string) columns {
	t := columns{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.row(heads...)
	return t
}

func (t columns) row(cells ...string) {
	for i, c := range cells {
		cells[i] = cmp.Or(c, "-")
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}
