package account

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// GenerateLink creates the token of a mail, and returns its link and one-time code to the administrator instead of
// sending them. The link never belongs to a PKCE flow. Neither limits nor DISABLE_SIGNUP apply, but the pause before
// the next mail to the address begins.
func (a *Accounts) GenerateLink(ctx context.Context, req flow.RequestInfo, by flow.Actor,
	p flow.LinkRequest) (flow.Link, error) {
	f := a.core.Begin(req)
	op := generateLinkOp{f: *f, by: by, p: p}
	op.cand = signupCandidate{aud: f.Aud(), provider: "email"}
	err := flow.CheckClaimLengths("", op.cand.aud)
	if err != nil {
		return flow.Link{}, err
	}
	if op.cand.address, err = flow.ParseEmail(p.Email); err != nil {
		return flow.Link{}, err
	}
	if op.cand.data, err = f.Settings.NewMetadata(p.Data); err != nil {
		return flow.Link{}, err
	}
	for again := false; ; again = true {
		out, err := op.run(ctx)
		if isOvertaken(err) && !again {
			continue
		}
		switch {
		case errors.Is(err, store.ErrNotFound):
			return flow.Link{}, errNoSuchEmail
		case errors.Is(err, store.ErrEmailTaken):
			return flow.Link{}, flow.ErrEmailExists
		}
		return out, refusal.Failure("generate link", err)
	}
}

var errNoSuchEmail = refusal.Missing(refusal.CodeUserNotFound, "User with this email not found")

// generateLinkOp is the state of one call of GenerateLink.
type generateLinkOp struct {
	f    flow.Flow
	by   flow.Actor
	p    flow.LinkRequest
	cand signupCandidate

	// These fields are the results of look. It is called again if another request takes the address before the link is
	// written.
	typ   string // effective type: magiclink becomes signup if the address is unknown
	made  linkType
	state addressState
	user  store.User
	waits store.Token // token of the sign-up that waits for its confirmation
}

// linkType describes what GenerateLink creates for a type of link.
type linkType struct {
	mail  flow.MailSpec
	pause string // name of the pause before the next mail to the address
	sent  store.SentColumn
	note  store.Action
}

var linkTypes = map[string]linkType{
	"signup": {flow.MailSpec{Kind: store.KindSignup, Link: mail.LinkSignup, Keep: flow.KeepPending},
		"confirmation", store.ConfirmationSent, store.ActionUserConfirmationRequested},
	"invite": {flow.MailSpec{Kind: store.KindInvite, Link: mail.LinkInvite},
		"confirmation", store.ConfirmationSent, store.ActionUserInvited},
	"magiclink": {flow.MailSpec{Kind: store.KindMagicLink, Link: mail.LinkMagicLink},
		"recovery", store.RecoverySent, store.ActionUserRecoveryRequested},
	"recovery": {flow.MailSpec{Kind: store.KindRecovery, Link: mail.LinkRecovery},
		"recovery", store.RecoverySent, store.ActionUserRecoveryRequested},
	"email_change_current": {flow.MailSpec{Kind: store.KindEmailChangeCurrent, Link: mail.LinkEmailChange},
		"email_change", store.EmailChangeSent, store.ActionEmailChangeRequested},
	"email_change_new": {flow.MailSpec{Kind: store.KindEmailChangeNew, Link: mail.LinkEmailChange},
		"email_change", store.EmailChangeSent, store.ActionEmailChangeRequested},
}

func (op *generateLinkOp) run(ctx context.Context) (flow.Link, error) {
	if err := op.look(ctx); err != nil {
		return flow.Link{}, err
	}
	return op.write(ctx)
}

// look reads which accounts have the address and the new address, and checks whether the link may be created.
func (op *generateLinkOp) look(ctx context.Context) error {
	op.typ = op.p.Type
	newEmail, badEmail := flow.ParseEmail(op.p.NewEmail)
	var known store.Pending
	var other, account store.User
	b := op.f.Batch()
	b.Pending(&known, op.cand.aud, op.cand.address, store.KindSignup)
	b.Account(&account, op.cand.aud, op.cand.address)
	b.Account(&other, op.cand.aud, newEmail)
	if err := b.Send(ctx); err != nil {
		return err
	}
	op.f.Tick()
	op.state, op.user, op.waits = op.cand.state(account), account, known.Token
	exists := account.ID != uuid.Nil && account.Email == op.cand.address
	switch {
	case !exists && op.typ == "magiclink":
		op.typ = "signup" // the link then creates an account without a password
	case !exists && (op.typ == "recovery" || op.typ == "email_change_current" || op.typ == "email_change_new"):
		return errNoSuchEmail
	}
	if err := op.checkType(ctx); err != nil {
		return err
	}
	var ok bool
	if op.made, ok = linkTypes[op.typ]; !ok {
		return refusal.NotValid(fmt.Sprintf("Invalid email action link type requested: %.100s", op.typ))
	}
	op.made.mail.To, op.made.mail.Vars.Email = op.cand.address, op.cand.address
	if !isChange(op.made.mail.Kind) {
		return nil
	}
	switch {
	case op.typ == "email_change_current" && !op.f.Settings.Email.SecureChange:
		return refusal.NotValid("Enable secure email change to generate link for current email")
	case badEmail != nil:
		return badEmail
	case other.ID != uuid.Nil:
		return flow.ErrEmailExists
	}
	op.made.mail.Vars.NewEmail = newEmail
	if op.typ == "email_change_new" {
		op.made.mail.To = newEmail
	}
	return nil
}

// checkType makes the checks that apply only to links of the types signup and invite. It also hashes the password of a
// sign-up.
func (op *generateLinkOp) checkType(ctx context.Context) error {
	if op.typ != "signup" && op.typ != "invite" {
		return nil
	}
	if op.state == addressTaken {
		return flow.ErrEmailExists
	}
	if op.typ == "signup" && op.p.Type == "signup" && (op.state == addressFree || op.p.Password != "") {
		if op.p.Password == "" {
			return refusal.NotValid("Signup requires a valid password")
		}
		if err := op.f.Settings.CheckPassword(op.p.Password); err != nil {
			return err
		}
		if op.cand.hash == "" {
			var err error
			if op.cand.hash, err = op.f.Core.Passwords.Hash(ctx, op.p.Password); err != nil {
				return err
			}
		}
	}
	return nil
}

func (op *generateLinkOp) write(ctx context.Context) (flow.Link, error) {
	typ, made, state, u, waits := op.typ, &op.made, op.state, op.user, op.waits
	msg, err := flow.NewMail(&op.f, made.mail)
	if err != nil {
		return flow.Link{}, err
	}
	msg.Message.Payload = nil // nothing is sent: the administrator gets the link
	msg.Token.Required = state == addressPending
	b := op.f.Batch()
	id := u.ID
	switch {
	case typ == "invite":
		id = op.cand.addInvited(&op.f, b, state, u)
	case typ == "signup" && state == addressFree:
		msg.Token.PasswordHash, msg.Token.UserMetadata = op.cand.hash, op.cand.data
		id = op.cand.addPending(&op.f, b, state, u)
	case typ == "signup": // the new token keeps the pending sign-up's password, unless this request has one
		if waits.Address == op.cand.address && !waits.Contested {
			msg.Token.PasswordHash, msg.Token.UserMetadata, msg.Token.Identity = waits.PasswordHash, waits.UserMetadata,
				waits.Identity
		}
		msg.Token.Contested = waits.Contested
		if op.cand.hash != "" {
			msg.Token.PasswordHash = op.cand.hash
		}
		if len(op.cand.data) > 0 {
			msg.Token.UserMetadata = flow.Merge(msg.Token.UserMetadata, op.cand.data)
		}
		b.MarkSent(id, made.sent, op.f.Now)
	case made.mail.Vars.NewEmail != "":
		b.UpdateUser(store.UserPatch{ID: id, Now: op.f.Now, NewEmail: &made.mail.Vars.NewEmail,
			CurrentEmailProven: new(false), NewEmailProven: new(false), EmailChangeSentAt: &op.f.Now})
		// The tokens of a change to another address prove nothing any more: they are deleted.
		if u.NewEmail != made.mail.Vars.NewEmail {
			b.DeleteTokens(id, store.KindEmailChangeCurrent, store.KindEmailChangeNew)
		}
	default:
		b.MarkSent(id, made.sent, op.f.Now)
	}
	flow.InsertOutgoing(b, id, nil, msg)
	b.Audit(op.by.Audit(&op.f, made.note, "user_id", id.String()))
	var out store.User
	b.User(&out, id)
	if err := b.Send(ctx); err != nil {
		return flow.Link{}, err
	}
	op.cand.beginPause(ctx, &op.f, made.pause)
	if typ == "signup" { // the metadata is stored with the token until the address is confirmed
		out.UserMetadata = flow.WithoutOwn(msg.Token.UserMetadata)
	}
	return flow.Link{User: out, ActionLink: msg.URL, EmailOTP: msg.Code, HashedToken: msg.TokenHash, VerificationType: typ,
		RedirectTo: op.f.Req.RedirectTo}, nil
}
