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
func (a *Accounts) GenerateLink(ctx context.Context, req RequestInfo, by Actor, p LinkRequest) (Link, error) {
	return generateLink(ctx, a.begin(req), by, p)
}

func generateLink(ctx context.Context, f *flow, by Actor, p LinkRequest) (Link, error) {
	g := generation{f: f, by: by, p: p}
	g.cand = signupCandidate{aud: f.aud(), provider: "email"}
	err := goodClaims("", g.cand.aud)
	if err != nil {
		return Link{}, err
	}
	if g.cand.address, err = goodEmail(p.Email); err != nil {
		return Link{}, err
	}
	if g.cand.data, err = f.settings.newMetadata(p.Data); err != nil {
		return Link{}, err
	}
	for again := false; ; again = true {
		out, err := g.run(ctx)
		if isOvertaken(err) && !again {
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
	f    *flow
	by   Actor
	p    LinkRequest
	cand signupCandidate

	// What the look found out; again after the address was overtaken.
	typ   string // the type that it becomes: magiclink is signup for an unknown address
	made  generated
	state addressState
	user  store.User
	waits store.Token // of the sign-up that waits
}

// generated is what each type makes.
type generated struct {
	mail  mailSpec
	pause string // the user's next mail of this sort waits
	sent  store.SentColumn
	note  store.Action
}

var generatable = map[string]generated{
	"signup": {mailSpec{kind: store.KindSignup, link: mail.LinkSignup, keep: keepPending},
		"confirmation", store.ConfirmationSent, store.ActionUserConfirmationRequested},
	"invite": {mailSpec{kind: store.KindInvite, link: mail.LinkInvite},
		"", store.ConfirmationSent, store.ActionUserInvited},
	"magiclink": {mailSpec{kind: store.KindMagicLink, link: mail.LinkMagicLink},
		"recovery", store.RecoverySent, store.ActionUserRecoveryRequested},
	"recovery": {mailSpec{kind: store.KindRecovery, link: mail.LinkRecovery},
		"recovery", store.RecoverySent, store.ActionUserRecoveryRequested},
	"email_change_current": {mailSpec{kind: store.KindEmailChangeCurrent, link: mail.LinkEmailChange},
		"email_change", store.EmailChangeSent, store.ActionEmailChangeRequested},
	"email_change_new": {mailSpec{kind: store.KindEmailChangeNew, link: mail.LinkEmailChange},
		"email_change", store.EmailChangeSent, store.ActionEmailChangeRequested},
}

func (g *generation) run(ctx context.Context) (Link, error) {
	if err := g.look(ctx); err != nil {
		return Link{}, err
	}
	return g.write(ctx)
}

// look reads who has the addresses, and judges whether the link may be made.
func (g *generation) look(ctx context.Context) error {
	g.typ = g.p.Type
	newEmail, badEmail := goodEmail(g.p.NewEmail)
	var known store.Pending
	var other, account store.User
	b := g.f.batch()
	b.Pending(&known, g.cand.aud, g.cand.address, store.KindSignup)
	b.Account(&account, g.cand.aud, g.cand.address)
	b.Account(&other, g.cand.aud, newEmail)
	if err := b.Send(ctx); err != nil {
		return err
	}
	g.f.tick()
	g.state, g.user, g.waits = g.cand.state(account), account, known.Token
	exists := account.ID != uuid.Nil && account.Email == g.cand.address
	switch {
	case !exists && g.typ == "magiclink":
		g.typ = "signup" // without password
	case !exists && (g.typ == "recovery" || g.typ == "email_change_current" || g.typ == "email_change_new"):
		return errNoSuchEmail
	}
	if err := g.judge(ctx); err != nil {
		return err
	}
	var ok bool
	if g.made, ok = generatable[g.typ]; !ok {
		return notValid(fmt.Sprintf("Invalid email action link type requested: %.100s", g.typ))
	}
	g.made.mail.to, g.made.mail.vars.Email = g.cand.address, g.cand.address
	if !isChange(g.made.mail.kind) {
		return nil
	}
	switch {
	case g.typ == "email_change_current" && !g.f.settings.Email.SecureChange:
		return notValid("Enable secure email change to generate link for current email")
	case badEmail != nil:
		return badEmail
	case other.ID != uuid.Nil:
		return errEmailExists
	}
	g.made.mail.vars.NewEmail = newEmail
	if g.typ == "email_change_new" {
		g.made.mail.to = newEmail
	}
	return nil
}

// judge are the checks of links for people who aren't confirmed yet.
func (g *generation) judge(ctx context.Context) error {
	if g.typ != "signup" && g.typ != "invite" {
		return nil
	}
	if g.state == addressTaken {
		return errEmailExists
	}
	if g.typ == "signup" && g.p.Type == "signup" && (g.state == addressFree || g.p.Password != "") {
		if g.p.Password == "" {
			return notValid("Signup requires a valid password")
		}
		if err := g.f.settings.goodPassword(g.p.Password); err != nil {
			return err
		}
		if g.cand.hash == "" {
			var err error
			if g.cand.hash, err = g.f.core.passwords.Hash(ctx, g.p.Password); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *generation) write(ctx context.Context) (Link, error) {
	typ, made, state, u, waits := g.typ, &g.made, g.state, g.user, g.waits
	msg, err := newMail(g.f, made.mail)
	if err != nil {
		return Link{}, err
	}
	msg.message.Payload = nil // the caller delivers it
	msg.token.Required = state == addressPending
	b := g.f.batch()
	id := u.ID
	switch {
	case typ == "invite":
		id = g.cand.addInvited(g.f, b, state, u)
	case typ == "signup" && state == addressFree:
		msg.token.PasswordHash, msg.token.UserMetadata = g.cand.hash, g.cand.data
		id = g.cand.addPending(g.f, b, state, u)
	case typ == "signup": // a sign-up that waits keeps its password, unless this one brings its own
		if waits.Address == g.cand.address {
			msg.token.PasswordHash, msg.token.UserMetadata, msg.token.Identity = waits.PasswordHash, waits.UserMetadata, waits.Identity
		}
		if g.cand.hash != "" {
			msg.token.PasswordHash = g.cand.hash
		}
		if len(g.cand.data) > 0 {
			msg.token.UserMetadata = merge(msg.token.UserMetadata, g.cand.data)
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
	insertOutgoing(b, id, nil, msg)
	b.Audit(g.by.audit(g.f, made.note, "user_id", id.String()))
	var out store.User
	b.User(&out, id)
	if err := b.Send(ctx); err != nil {
		return Link{}, err
	}
	g.pause(ctx)
	if typ == "signup" { // the data waits with the token
		out.UserMetadata = withoutOwn(msg.token.UserMetadata)
	}
	return Link{User: out, ActionLink: msg.url, EmailOTP: msg.code, HashedToken: msg.tokenHash, VerificationType: typ, RedirectTo: g.f.req.RedirectTo}, nil
}

// pause begins the pause that a mail would have begun, if it hasn't yet. Nothing depends on it.
func (g *generation) pause(ctx context.Context) {
	if g.made.pause == "" {
		return
	}
	pause := g.f.settings.Email.Interval
	if g.made.pause == "confirmation" {
		pause = g.f.settings.Email.ConfirmationInterval
	}
	q := mailQuota(g.f, g.made.pause, pause, g.cand.aud, g.cand.address)
	q.budgets = nil
	b := g.f.batch()
	q.take(b, g.f.now)
	if err := b.Send(ctx); err != nil && q.refused(err) == err {
		g.f.core.log.Warn("a generated link began no pause between mails", "err", err)
	}
}
