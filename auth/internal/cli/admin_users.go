package cli

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
)

// adminList prints a page of users. The cursor is the ID of the last user on the previous page.
func (p *program) adminList(ctx context.Context, f *flag.FlagSet, aud *string, args []string) error {
	text := f.String("filter", "", "part of the e-mail address, the phone number or the full name")
	n, cursor := f.Int("n", 50, "how many"), f.String("cursor", "", "the id that the page before ended with")
	if _, err := p.parse(f, args, "[-filter TEXT] [-n 50] [-cursor ID]", 0, 0); err != nil {
		return err
	}
	var after uuid.UUID
	if *cursor != "" {
		var err error
		if after, err = uuid.Parse(*cursor); err != nil {
			return p.misused(f, "-cursor is the id of a user, not %q", *cursor)
		}
	}
	if *n < 1 || *n > 1000 {
		return p.misused(f, "-n is 1 to 1000, not %d", *n)
	}
	r, err := p.openAlone(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	filter := store.UsersFilter{Aud: cmp.Or(*aud, r.config.Accounts.Audience), Text: *text, Limit: *n + 1}
	if after != uuid.Nil {
		last, err := r.users.AdminUser(ctx, after)
		if err != nil {
			return plain(err)
		}
		filter.After = store.Cursor{CreatedAt: last.CreatedAt, ID: last.ID}
	}
	list, _, err := r.users.AdminUsers(ctx, filter)
	if err != nil {
		return plain(err)
	}
	more := len(list) > *n
	list = list[:min(len(list), *n)]
	t := table(p.stdout, "ID", "EMAIL", "PHONE", "ROLE", "CONFIRMED", "LAST SIGN-IN", "BANNED UNTIL")
	for _, u := range list {
		confirmed := u.EmailConfirmedAt
		if confirmed.IsZero() {
			confirmed = u.PhoneConfirmedAt
		}
		t.row(u.ID.String(), u.Email, u.Phone, u.Role, clock(confirmed), clock(u.LastSignInAt), clock(u.BannedUntil))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if more {
		fmt.Fprintf(p.stderr, "more: -cursor %s\n", list[len(list)-1].ID)
	}
	return nil
}

// adminOwned lists or ends a user's sessions or second factors; what is "sessions" or "factors".
func (p *program) adminOwned(ctx context.Context, f *flag.FlagSet, aud *string, what string, args []string) error {
	verb, end := "end", new(string)
	if what == "factors" {
		verb = "delete"
	}
	f.StringVar(end, verb, "", "this id, or all of them")
	args, err := p.parse(f, args, "[-"+verb+" ID|all] WHO", 1, 1)
	if err != nil {
		return err
	}
	var id uuid.UUID
	if *end != "" && *end != "all" {
		if id, err = uuid.Parse(*end); err != nil {
			return p.misused(f, "-%s is an id or all, not %q", verb, *end)
		}
	}
	r, err := p.openAlone(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	u, err := r.find(ctx, *aud, args[0])
	if err != nil {
		return err
	}
	switch {
	case what == "factors" && *end != "":
		return p.deleteFactors(ctx, r, u.ID, id)
	case what == "factors":
		return p.listFactors(ctx, r, u.ID)
	case *end == "":
		return p.listSessions(ctx, r, u.ID)
	case id == uuid.Nil:
		err = r.users.AdminEndSessions(ctx, flow.RequestInfo{}, operator, u.ID)
	default:
		err = r.users.AdminEndSession(ctx, flow.RequestInfo{}, operator, u.ID, id)
	}
	if err != nil {
		return plain(err)
	}
	_, err = fmt.Fprintf(p.stdout, "ended %s of %s\n", *end, u.ID)
	return err
}

func (p *program) listSessions(ctx context.Context, r *rooms, user uuid.UUID) error {
	list, err := r.users.UserSessions(ctx, user)
	if err != nil {
		return plain(err)
	}
	t := table(p.stdout, "ID", "CREATED", "REFRESHED", "LEVEL", "ADDRESS", "ENDED", "REASON", "USER AGENT")
	for _, s := range list {
		t.row(s.ID.String(), clock(s.CreatedAt), clock(s.RefreshedAt), fmt.Sprintf("aal%d", s.AAL), s.IP, clock(s.EndedAt),
			s.EndedReason, printable(s.UserAgent))
	}
	return t.Flush()
}

func (p *program) listFactors(ctx context.Context, r *rooms, user uuid.UUID) error {
	list, err := r.factors.AdminFactors(ctx, user)
	if err != nil {
		return plain(err)
	}
	t := table(p.stdout, "ID", "KIND", "NAME", "PHONE", "CREATED", "VERIFIED", "LAST CHALLENGE")
	for _, v := range list {
		t.row(v.ID.String(), string(v.Kind), printable(v.FriendlyName), v.Phone, clock(v.CreatedAt), clock(v.VerifiedAt),
			clock(v.LastChallengedAt))
	}
	return t.Flush()
}

// deleteFactors deletes one second factor of a user, or all of them if id is zero.
func (p *program) deleteFactors(ctx context.Context, r *rooms, user, id uuid.UUID) error {
	ids := []uuid.UUID{id}
	if id == uuid.Nil {
		list, err := r.factors.AdminFactors(ctx, user)
		if err != nil {
			return plain(err)
		}
		ids = ids[:0]
		for _, v := range list {
			if v.Kind == store.FactorRecoveryCodes { // first, since they would be deleted with the last other factor
				ids = slices.Insert(ids, 0, v.ID)
			} else {
				ids = append(ids, v.ID)
			}
		}
	}
	for _, id := range ids {
		if _, err := r.factors.AdminDeleteFactor(ctx, flow.RequestInfo{}, operator, user, id); err != nil {
			return plain(err)
		}
		fmt.Fprintf(p.stdout, "removed %s\n", id)
	}
	return nil
}

// printable returns a text from outside in a form for a terminal: without control characters, and cut to 60 characters.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
	if runes := []rune(text); len(runes) > 60 {
		return string(runes[:57]) + "..."
	}
	return text
}
