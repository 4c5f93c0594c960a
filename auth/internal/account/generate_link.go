package account

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// GenerateLink creates the token of a mail and returns its link and digits instead of sending them. Links never belong
// to a PKCE flow. Neither limits nor DISABLE_SIGNUP apply, but the user's own next request meets the pause.
func (a *Accounts) GenerateLink(ctx context.Context, req RequestInfo, by Actor, p LinkRequest) (Link, error) {
	f := a.core.Begin(req)
	op := generateLinkOp{f: *f, by: by, p: p}
	op.cand = signupCandidate{aud: f.aud(), provider: "email"}
	err := checkClaimLengths("", op.cand.aud)
	if err != nil {
		return Link{}, err
	}
	if op.cand.address, err = parseEmail(p.Email); err != nil {
		return Link{}, err
	}
	if op.cand.data, err = f.settings.newMetadata(p.Data); err != nil {
		return Link{}, err
	}
	for again := false; ; again = true {
		out, err := op.run(ctx)
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

// generateLinkOp is one call of GenerateLink.
type generateLinkOp struct {
	f    flow
	by   Actor
	p    LinkRequest
	cand signupCandidate

	// What the look-up found; set again after the address was overtaken.
	typ   string // the effective type: magiclink becomes signup for an unknown address
	made  linkType
	state addressState
	user  store.User
	waits store.Token // of the pending sign-up
}

// linkType describes what each type creates.
type linkType struct {
	mail  mailSpec
	pause string // the name of the pause that begins for the user's next mail
	sent  store.SentColumn
	note  store.Action
}

var linkTypes = map[string]linkType{
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

func (op *generateLinkOp) run(ctx context.Context) (Link, error) {
	if err := op.look(ctx); err != nil {
		return Link{}, err
	}
	return op.write(ctx)
}

// look reads which accounts have the addresses, and checks whether the link may be created.
func (op *generateLinkOp) look(ctx context.Context) error {
	op.typ = op.p.Type
	newEmail, badEmail := parseEmail(op.p.NewEmail)
	var known store.Pending
	var other, account store.User
	b := op.f.batch()
	b.Pending(&known, op.cand.aud, op.cand.address, store.KindSignup)
	b.Account(&account, op.cand.aud, op.cand.address)
	b.Account(&other, op.cand.aud, newEmail)
	if err := b.Send(ctx); err != nil {
		return err
	}
	op.f.tick()
	op.state, op.user, op.waits = op.cand.state(account), account, known.Token
	exists := account.ID != uuid.Nil && account.Email == op.cand.address
	switch {
	case !exists && op.typ == "magiclink":
		op.typ = "signup" // without password
	case !exists && (op.typ == "recovery" || op.typ == "email_change_current" || op.typ == "email_change_new"):
		return errNoSuchEmail
	}
	if err := op.checkType(ctx); err != nil {
		return err
	}
	var ok bool
	if op.made, ok = linkTypes[op.typ]; !ok {
		return notValid(fmt.Sprintf("Invalid email action link type requested: %.100s", op.typ))
	}
	op.made.mail.to, op.made.mail.vars.Email = op.cand.address, op.cand.address
	if !isChange(op.made.mail.kind) {
		return nil
	}
	switch {
	case op.typ == "email_change_current" && !op.f.settings.Email.SecureChange:
		return notValid("Enable secure email change to generate link for current email")
	case badEmail != nil:
		return badEmail
	case other.ID != uuid.Nil:
		return errEmailExists
	}
	op.made.mail.vars.NewEmail = newEmail
	if op.typ == "email_change_new" {
		op.made.mail.to = newEmail
	}
	return nil
}

// checkType checks links for users who are not confirmed yet.
func (op *generateLinkOp) checkType(ctx context.Context) error {
	if op.typ != "signup" && op.typ != "invite" {
		return nil
	}
	if op.state == addressTaken {
		return errEmailExists
	}
	if op.typ == "signup" && op.p.Type == "signup" && (op.state == addressFree || op.p.Password != "") {
		if op.p.Password == "" {
			return notValid("Signup requires a valid password")
		}
		if err := op.f.settings.checkPassword(op.p.Password); err != nil {
			return err
		}
		if op.cand.hash == "" {
			var err error
			if op.cand.hash, err = op.f.core.passwords.Hash(ctx, op.p.Password); err != nil {
				return err
			}
		}
	}
	return nil
}

func (op *generateLinkOp) write(ctx context.Context) (Link, error) {
	typ, made, state, u, waits := op.typ, &op.made, op.state, op.user, op.waits
	msg, err := newMail(&op.f, made.mail)
	if err != nil {
		return Link{}, err
	}
	msg.message.Payload = nil // the caller delivers it
	msg.token.Required = state == addressPending
	b := op.f.batch()
	id := u.ID
	switch {
	case typ == "invite":
		id = op.cand.addInvited(&op.f, b, state, u)
	case typ == "signup" && state == addressFree:
		msg.token.PasswordHash, msg.token.UserMetadata = op.cand.hash, op.cand.data
		id = op.cand.addPending(&op.f, b, state, u)
	case typ == "signup": // a pending sign-up keeps its password, unless this request has one
		if waits.Address == op.cand.address && !waits.Contested {
			msg.token.PasswordHash, msg.token.UserMetadata, msg.token.Identity = waits.PasswordHash, waits.UserMetadata,
				waits.Identity
		}
		msg.token.Contested = waits.Contested
		if op.cand.hash != "" {
			msg.token.PasswordHash = op.cand.hash
		}
		if len(op.cand.data) > 0 {
			msg.token.UserMetadata = merge(msg.token.UserMetadata, op.cand.data)
		}
		b.MarkSent(id, made.sent, op.f.now)
	case made.mail.vars.NewEmail != "":
		b.UpdateUser(store.UserPatch{ID: id, Now: op.f.now, NewEmail: &made.mail.vars.NewEmail,
			CurrentEmailProven: new(false), NewEmailProven: new(false), EmailChangeSentAt: &op.f.now})
		if u.NewEmail != made.mail.vars.NewEmail { // what was sent for another address no longer proves anything
			b.DeleteTokens(id, store.KindEmailChangeCurrent, store.KindEmailChangeNew)
		}
	default:
		b.MarkSent(id, made.sent, op.f.now)
	}
	insertOutgoing(b, id, nil, msg)
	b.Audit(op.by.audit(&op.f, made.note, "user_id", id.String()))
	var out store.User
	b.User(&out, id)
	if err := b.Send(ctx); err != nil {
		return Link{}, err
	}
	op.beginPause(ctx)
	if typ == "signup" { // the metadata is stored with the token
		out.UserMetadata = withoutOwn(msg.token.UserMetadata)
	}
	return Link{User: out, ActionLink: msg.url, EmailOTP: msg.code, HashedToken: msg.tokenHash, VerificationType: typ,
		RedirectTo: op.f.req.RedirectTo}, nil
}

// beginPause begins the pause that a mail would have begun, unless it runs already. Nothing depends on it.
func (op *generateLinkOp) beginPause(ctx context.Context) {
	if op.made.pause == "" {
		return
	}
	pause := op.f.settings.Email.Interval
	if op.made.pause == "confirmation" {
		pause = op.f.settings.Email.ConfirmationInterval
	}
	q := mailQuota(&op.f, op.made.pause, pause, op.cand.aud, op.cand.address)
	q.budgets = nil
	b := op.f.batch()
	q.take(b, op.f.now)
	if err := b.Send(ctx); err != nil && q.refusalOf(err) == err {
		op.f.core.log.Warn("a generated link began no pause between mails", "error", err)
	}
}
