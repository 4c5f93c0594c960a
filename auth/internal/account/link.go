package account

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// GenerateLink makes the token of a mail and returns its link and digits instead of sending them. Links are never
// those of a PKCE flow. Neither limits nor DISABLE_SIGNUP hold, but the user's own next request meets the pause.
func (a *Accounts) GenerateLink(ctx context.Context, c Client, by Actor, p LinkRequest) (Link, error) {
	return generateLink(ctx, a.begin(c), by, p)
}

func generateLink(ctx context.Context, f *flow, by Actor, p LinkRequest) (Link, error) {
	g := generation{f: f, by: by, p: p}
	g.n = newcomer{aud: f.aud(), provider: "email"}
	err := goodClaims("", g.n.aud)
	if err != nil {
		return Link{}, err
	}
	if g.n.who, err = goodEmail(p.Email); err != nil {
		return Link{}, err
	}
	if g.n.data, err = f.settings.newMetadata(p.Data); err != nil {
		return Link{}, err
	}
	for again := false; ; again = true {
		out, err := g.run(ctx)
		if overtaken(err) && !again {
			continue
		}
		switch {
		case errors.Is(err, store.ErrNotFound):
			return Link{}, errNoSuchEmail
		case errors.Is(err, store.ErrEmailTaken):
			return Link{}, errEmailExists
		}
		return out, failure("generate link", err)
	}
}

var errNoSuchEmail = missing(CodeUserNotFound, "User with this email not found")

// generation is one call of GenerateLink.
type generation struct {
	f  *flow
	by Actor
	p  LinkRequest
	n  newcomer
}

// generated is what each type makes.
type generated struct {
	mail  mailed
	pause string // the user's next mail of this sort waits
	sent  store.SentColumn
	note  store.Action
}

func (g *generation) run(ctx context.Context) (Link, error) {
	typ := g.p.Type
	newEmail, badEmail := goodEmail(g.p.NewEmail)
	var known store.Pending
	var other, account store.User
	b := g.f.batch()
	b.Pending(&known, g.n.aud, g.n.who, store.KindSignup)
	b.Account(&account, g.n.aud, g.n.who)
	b.Account(&other, g.n.aud, newEmail)
	if err := b.Send(ctx); err != nil {
		return Link{}, err
	}
	g.f.tick()
	st := g.n.standing(account)
	u := account
	exists := account.ID != uuid.Nil && account.Email == g.n.who
	switch {
	case !exists && typ == "magiclink":
		typ = "signup" // without password
	case !exists && (typ == "recovery" || typ == "email_change_current" || typ == "email_change_new"):
		return Link{}, errNoSuchEmail
	}
	if err := g.judge(ctx, typ, st); err != nil {
		return Link{}, err
	}
	made, err := g.kind(typ)
	if err != nil {
		return Link{}, err
	}
	if made.mail.kind == store.KindEmailChangeCurrent || made.mail.kind == store.KindEmailChangeNew {
		switch {
		case typ == "email_change_current" && !g.f.settings.Email.SecureChange:
			return Link{}, notValid("Enable secure email change to generate link for current email")
		case badEmail != nil:
			return Link{}, badEmail
		case other.ID != uuid.Nil:
			return Link{}, errEmailExists
		}
		made.mail.vars.NewEmail = newEmail
		if typ == "email_change_new" {
			made.mail.to = newEmail
		}
	}
	return g.write(ctx, typ, made, st, u, known.Token)
}

// judge are the checks of links for people who aren't confirmed yet.
func (g *generation) judge(ctx context.Context, typ string, st standing) error {
	if typ != "signup" && typ != "invite" {
		return nil
	}
	if st == taken {
		return errEmailExists
	}
	if typ == "signup" && g.p.Type == "signup" && (st == fresh || g.p.Password != "") {
		if g.p.Password == "" {
			return notValid("Signup requires a valid password")
		}
		if err := g.f.settings.goodPassword(g.p.Password); err != nil {
			return err
		}
		if g.n.hash == "" {
			var err error
			if g.n.hash, err = g.f.core.passwords.Hash(ctx, g.p.Password); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *generation) kind(typ string) (generated, error) {
	made := generated{mail: mailed{to: g.n.who, vars: mail.Vars{Email: g.n.who}}}
	switch typ {
	case "signup":
		made.mail.kind, made.mail.link, made.pause, made.sent, made.note = store.KindSignup, mail.LinkSignup, "confirmation", store.ConfirmationSent, store.ActionUserConfirmationRequested
		made.mail.keep = keepPending
	case "invite":
		made.mail.kind, made.mail.link, made.sent, made.note = store.KindInvite, mail.LinkInvite, store.ConfirmationSent, store.ActionUserInvited
	case "magiclink":
		made.mail.kind, made.mail.link, made.pause, made.sent, made.note = store.KindMagicLink, mail.LinkMagicLink, "recovery", store.RecoverySent, store.ActionUserRecoveryRequested
	case "recovery":
		made.mail.kind, made.mail.link, made.pause, made.sent, made.note = store.KindRecovery, mail.LinkRecovery, "recovery", store.RecoverySent, store.ActionUserRecoveryRequested
	case "email_change_current":
		made.mail.kind, made.mail.link, made.pause, made.sent, made.note = store.KindEmailChangeCurrent, mail.LinkEmailChange, "email_change", store.EmailChangeSent, store.ActionEmailChangeRequested
	case "email_change_new":
		made.mail.kind, made.mail.link, made.pause, made.sent, made.note = store.KindEmailChangeNew, mail.LinkEmailChange, "email_change", store.EmailChangeSent, store.ActionEmailChangeRequested
	default:
		return made, notValid(fmt.Sprintf("Invalid email action link type requested: %.100s", typ))
	}
	return made, nil
}

func (g *generation) write(ctx context.Context, typ string, made generated, st standing, u store.User, waits store.Token) (Link, error) {
	l, err := newMail(g.f, made.mail)
	if err != nil {
		return Link{}, err
	}
	l.message.Payload = nil // the caller delivers it
	l.token.Required = st == pending
	b := g.f.batch()
	id := u.ID
	switch {
	case typ == "invite":
		id = g.n.invited(g.f, b, st, u)
	case typ == "signup" && st == fresh:
		l.token.PasswordHash, l.token.UserMetadata = g.n.hash, g.n.data
		id = g.n.enlist(g.f, b, st, u)
	case typ == "signup": // a sign-up that waits keeps its password, unless this one brings its own
		if waits.Address == g.n.who {
			l.token.PasswordHash, l.token.UserMetadata, l.token.Identity = waits.PasswordHash, waits.UserMetadata, waits.Identity
		}
		if g.n.hash != "" {
			l.token.PasswordHash = g.n.hash
		}
		if len(g.n.data) > 0 {
			l.token.UserMetadata = merge(l.token.UserMetadata, g.n.data)
		}
		b.MarkSent(id, made.sent, g.f.now)
	case made.mail.vars.NewEmail != "":
		b.UpdateUser(store.UserPatch{ID: id, Now: g.f.now, NewEmail: &made.mail.vars.NewEmail, CurrentEmailProven: ptr(false), NewEmailProven: ptr(false), EmailChangeSentAt: &g.f.now})
		if u.NewEmail != made.mail.vars.NewEmail { // what was sent for another address proves nothing now
			b.DeleteTokens(id, store.KindEmailChangeCurrent, store.KindEmailChangeNew)
		}
	default:
		b.MarkSent(id, made.sent, g.f.now)
	}
	write(b, id, nil, l)
	b.Audit(g.by.audit(g.f, made.note, "user_id", id.String()))
	var out store.User
	b.User(&out, id)
	if err := b.Send(ctx); err != nil {
		return Link{}, err
	}
	g.pause(ctx, made)
	if typ == "signup" { // the data waits with the token
		out.UserMetadata = withoutOwn(l.token.UserMetadata)
	}
	return Link{User: out, ActionLink: l.url, EmailOTP: l.code, HashedToken: l.tokenHash, VerificationType: typ, RedirectTo: g.f.req.RedirectTo}, nil
}

// pause begins the pause that a mail would have begun, if it hasn't yet. Nothing depends on it.
func (g *generation) pause(ctx context.Context, made generated) {
	if made.pause == "" {
		return
	}
	pause := g.f.settings.Email.Interval
	if made.pause == "confirmation" {
		pause = g.f.settings.Email.ConfirmationInterval
	}
	q := mailQuota(g.f, made.pause, pause, g.n.aud, g.n.who)
	q.budgets = nil
	b := g.f.batch()
	q.take(b, g.f.now)
	if err := b.Send(ctx); err != nil && q.refused(err) == err {
		g.f.core.log.Warn("a generated link began no pause between mails", "err", err)
	}
}
