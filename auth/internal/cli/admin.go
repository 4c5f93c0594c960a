package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/store"
)

// operator is the actor of these commands in the audit log.
var operator = flow.Actor{Role: "auth admin"}

// admin runs the command "auth admin". Its sub-commands createuser and deleteuser have their names from supabase/auth.
func (p *program) admin(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return p.misusedGroup("admin")
	}
	what, args := args[0], args[1:]
	f := flag.NewFlagSet("admin "+what, flag.ContinueOnError)
	aud := f.String("aud", "", "audience; empty: JWT_AUD")
	f.StringVar(aud, "a", "", "the same")
	var err error
	switch what {
	case "create", "createuser":
		return p.adminCreate(ctx, f, aud, args)
	case "list":
		return p.adminList(ctx, f, aud, args)
	case "sessions", "factors":
		return p.adminOwned(ctx, f, aud, what, args)
	case "get", "unban", "claim", "password":
		args, err = p.parse(f, args, "WHO", 1, 1)
	case "ban":
		args, err = p.parse(f, args, "WHO DURATION", 2, 2)
	case "role":
		args, err = p.parse(f, args, "WHO ROLE", 2, 2)
	case "delete", "deleteuser":
		soft := f.Bool("soft", false, "keep the id, remove everything personal")
		if args, err = p.parse(f, args, "[-soft] WHO", 1, 1); err == nil && *soft {
			what = "soft delete"
		}
	default:
		return p.misusedGroup("admin")
	}
	if err != nil {
		return err
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
	switch what {
	case "get":
		return p.show(u)
	case "claim":
		if err := r.users.AdminClaim(ctx, flow.RequestInfo{}, operator, u.ID); err != nil {
			return plain(err)
		}
		_, err = fmt.Fprintf(p.stdout, "claimed %s: a recovery mail waits for %s\n", u.ID, u.Email)
		return err
	case "delete", "deleteuser", "soft delete":
		if err := r.users.AdminDelete(
			ctx, flow.RequestInfo{}, operator, u.ID, what == "soft delete"); err != nil {
			return plain(err)
		}
		_, err = fmt.Fprintf(p.stdout, "deleted %s\n", u.ID)
		return err
	}
	change, none := flow.Attributes{}, "none"
	switch what {
	case "ban":
		change.BanDuration = &args[1]
	case "unban":
		change.BanDuration = &none
	case "role":
		change.Role = &args[1]
	case "password":
		if change.Password, err = p.password("-"); err != nil {
			return err
		}
	}
	if u, err = r.users.AdminUpdate(ctx, flow.RequestInfo{}, operator, u.ID, change); err != nil {
		return plain(err)
	}
	return p.show(u)
}

func (p *program) adminCreate(ctx context.Context, f *flag.FlagSet, aud *string, args []string) error {
	confirm := f.Bool("confirm", false, "the address counts as confirmed")
	admin := f.Bool("admin", false, "the role is the first of JWT_ADMIN_ROLES")
	role := f.String("role", "", "role; empty: JWT_DEFAULT_GROUP_NAME")
	args, err := p.parse(f, args, "[-confirm] [-role ROLE] EMAIL [PASSWORD|-] [ROLE]", 1, 3)
	if err != nil {
		return err
	}
	if len(args) > 2 && *role != "" || *admin && (len(args) > 2 || *role != "") {
		return p.misused(f, "the role is given twice")
	}
	a := flow.Attributes{Aud: *aud, Email: &args[0], EmailConfirm: confirm}
	if len(args) > 1 {
		if a.Password, err = p.password(args[1]); err != nil {
			return err
		}
	}
	if len(args) > 2 {
		*role = args[2]
	}
	r, err := p.openAlone(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	if *admin && len(r.config.Accounts.AdminRoles) > 0 {
		*role = r.config.Accounts.AdminRoles[0]
	}
	if *role != "" {
		a.Role = role
	}
	u, err := r.users.AdminCreate(ctx, flow.RequestInfo{}, operator, a)
	if err != nil {
		return plain(err)
	}
	return p.show(u)
}

// password returns the argument. If it is "-", it returns the first line of standard input, which a list of processes
// does not show.
func (p *program) password(arg string) (*string, error) {
	if arg != "-" {
		return &arg, nil
	}
	line, err := bufio.NewReader(p.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read password: %w", err)
	}
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return nil, errors.New("there is no password on standard input")
	}
	return &line, nil
}

// find returns the user with the e-mail address, phone number or ID that is given as who.
func (r *rooms) find(ctx context.Context, aud, who string) (store.User, error) {
	if id, err := uuid.Parse(who); err == nil {
		u, err := r.users.AdminUser(ctx, id)
		return u, plain(err)
	}
	filter := store.UsersFilter{Aud: cmp.Or(aud, r.config.Accounts.Audience), Limit: 1}
	switch {
	case strings.Contains(who, "@"):
		filter.Email = strings.ToLower(who)
	case strings.HasPrefix(who, "+"):
		filter.Phone = address.FoldPhone(who)
	default:
		return store.User{}, fmt.Errorf("%q is neither an e-mail address nor an id, nor a phone number with +", who)
	}
	list, _, err := r.users.AdminUsers(ctx, filter)
	if err != nil {
		return store.User{}, plain(err)
	}
	if len(list) == 0 {
		return store.User{}, fmt.Errorf("no user %s in audience %s", who, filter.Aud)
	}
	u, err := r.users.AdminUser(ctx, list[0].ID)
	return u, plain(err)
}

// plain returns an error with the text of a refusal, without its code; other errors are unchanged.
func plain(err error) error {
	if refusal, ok := errors.AsType[*refusal.Refusal](err); ok {
		if refusal.Err != nil {
			return fmt.Errorf("%s (%w)", refusal.Msg, refusal.Err)
		}
		return errors.New(refusal.Msg)
	}
	return err
}

// show prints a user, without hashes.
func (p *program) show(u store.User) error {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return clock(t)
	}
	var providers []string
	for _, i := range u.Identities {
		providers = append(providers, i.Provider)
	}
	b, err := json.MarshalIndent(struct {
		ID               uuid.UUID       `json:"id"`
		Aud              string          `json:"aud"`
		Role             string          `json:"role"`
		Email            string          `json:"email,omitempty"`
		Phone            string          `json:"phone,omitempty"`
		EmailConfirmedAt string          `json:"email_confirmed_at,omitempty"`
		PhoneConfirmedAt string          `json:"phone_confirmed_at,omitempty"`
		InvitedAt        string          `json:"invited_at,omitempty"`
		BannedUntil      string          `json:"banned_until,omitempty"`
		DeletedAt        string          `json:"deleted_at,omitempty"`
		CreatedAt        string          `json:"created_at"`
		LastSignInAt     string          `json:"last_sign_in_at,omitempty"`
		Anonymous        bool            `json:"is_anonymous"`
		HasPassword      bool            `json:"has_password"`
		Providers        []string        `json:"providers,omitempty"`
		AppMetadata      json.RawMessage `json:"app_metadata,omitempty"`
		UserMetadata     json.RawMessage `json:"user_metadata,omitempty"`
	}{
		u.ID, u.Aud, u.Role, u.Email, u.Phone, at(u.EmailConfirmedAt), at(u.PhoneConfirmedAt), at(u.InvitedAt),
		at(u.BannedUntil), at(u.DeletedAt),
		at(u.CreatedAt), at(u.LastSignInAt), u.IsAnonymous, u.PasswordHash != "", providers, u.AppMetadata,
		u.UserMetadata,
	}, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "%s\n", b)
	return err
}
