package account

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
)

// signupCandidate is a sign-up for an address. Its password and metadata are stored with the token that is sent to the
// address, and become the account's only when the token is redeemed.
type signupCandidate struct {
	flow.Creation
	aud, provider, address string // provider is "email" or "phone"
	hash                   string // hash of the password; "" without a password
	data                   json.RawMessage
	challenge              flow.Challenge
	channel                string
	made                   uuid.UUID // ID of the identity that the method user returns
	identity               uuid.UUID // identity of the external provider that gave the address; Nil: none did
	contested              bool      // the message only proves the address, and carries no password or metadata
}

// accountID returns the ID of the known account or, if the address has none, the ID of the account to be created.
func (cand *signupCandidate) accountID(known store.User) uuid.UUID {
	if known.ID != uuid.Nil {
		return known.ID
	}
	return cand.NewID()
}

// addressState is the state of an address for a sign-up.
type addressState uint8

const (
	addressFree    addressState = iota // no account has the address
	addressPending                     // an unconfirmed account has the address
	addressTaken                       // a confirmed account has the address
)

func (cand *signupCandidate) state(u store.User) addressState {
	switch {
	case u.ID == uuid.Nil:
		return addressFree
	case cand.provider == "email" && u.Email == cand.address && u.EmailConfirmedAt.IsZero():
		return addressPending
	case cand.provider == "phone" && u.PhoneConfirmedAt.IsZero():
		return addressPending
	}
	return addressTaken // confirmed, or known from an external provider's identity
}

// find adds the statement that reads the account with the address.
func (cand *signupCandidate) find(b *flow.Batch, dst *store.User) {
	if cand.provider == "email" {
		b.Account(dst, cand.aud, cand.address)
	} else {
		b.UserByPhone(dst, cand.aud, cand.address)
	}
}

// profile returns data together with the members that this daemon writes itself, which replace members of the same
// name. The result is stored as the identity_data of the address and, if verified is set, also as the user_metadata.
func (cand *signupCandidate) profile(id uuid.UUID, verified bool, data json.RawMessage) json.RawMessage {
	return flow.Profile(id, cand.provider, cand.address, verified, data)
}

// user returns the new account, either as it is stored or as the answer shows it. Its identity is the same at each
// call. An address that is confirmed at once, without a mail or SMS, counts as unproven.
func (cand *signupCandidate) user(f *flow.Flow, id uuid.UUID, confirmed bool, data json.RawMessage) store.User {
	u := store.User{
		ID: id, Aud: cand.aud, Role: f.Settings.Role, CreatedAt: f.Now, UpdatedAt: f.Now,
		AppMetadata:  flow.MustJSON(map[string]any{"provider": cand.provider, "providers": []string{cand.provider}}),
		UserMetadata: cand.profile(id, confirmed, data),
	}
	cand.made = cmp.Or(cand.made, uuid.New())
	i := store.Identity{
		ID: cand.made, UserID: id, Provider: cand.provider, ProviderID: id.String(), Data: u.UserMetadata,
		LastSignInAt: f.Now, CreatedAt: f.Now, UpdatedAt: f.Now,
	}
	if cand.provider == "email" {
		u.Email, i.Email = cand.address, cand.address
	} else {
		u.Phone = cand.address
	}
	switch {
	case !confirmed:
		u.ConfirmationSentAt = f.Now
	case cand.provider == "email":
		u.EmailConfirmedAt, u.EmailUnproven = f.Now, true
	default:
		u.PhoneConfirmedAt, u.PhoneUnproven = f.Now, true
	}
	u.Identities = []store.Identity{i}
	return u
}

// phone returns the recipient of an SMS to the sign-up's number, with the given user_metadata.
func (cand *signupCandidate) phone(metadata json.RawMessage) flow.Phone {
	return flow.Phone{Number: cand.address, Channel: cand.channel, Metadata: metadata}
}

// confirmation returns the message that asks to confirm the address. user is the account's ID; pkce is nil without
// PKCE. The message's template sees the user_metadata that the account will have.
func (cand *signupCandidate) confirmation(f *flow.Flow, user uuid.UUID, pkce *store.Flow) (flow.Outgoing, error) {
	var msg flow.Outgoing
	var err error
	if cand.provider == "email" {
		msg, err = flow.NewConfirmation(f, cand.address, cand.shown(user), pkce)
	} else {
		msg, err = flow.NewSMS(f, store.KindSignup, cand.phone(cand.shown(user)))
		msg.Token.Keep = flow.KeepPending
	}
	msg.Token.PasswordHash, msg.Token.UserMetadata, msg.Token.Identity = cand.hash, cand.data, cand.identity
	msg.Token.Contested = cand.contested
	return msg, err
}

// shown returns the user_metadata that the account will have. Metadata from an external provider needs no further
// members.
func (cand *signupCandidate) shown(user uuid.UUID) json.RawMessage {
	if cand.identity != uuid.Nil {
		return cand.data
	}
	return cand.profile(user, false, cand.data)
}

// addPending adds the statements of a sign-up: for a free address they create the account, and for a pending address
// they record that another confirmation is sent. For a taken address, the same number of statements is sent and changes
// nothing. It returns the user's ID or, for a taken address, an ID that no user has.
func (cand *signupCandidate) addPending(f *flow.Flow, b *flow.Batch, state addressState, known store.User) uuid.UUID {
	switch state {
	case addressFree:
		u := cand.user(f, cand.NewID(), false, nil)
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
		return u.ID
	case addressPending:
		b.MarkSent(known.ID, store.ConfirmationSent, f.Now)
		b.VerifyIdentities(uuid.New(), cand.address, f.Now)
		return known.ID
	}
	return addNothing(b, f.Now)
}

// addNothing adds as many statements as addPending does, none of which changes anything, and returns an ID that no user
// has.
func addNothing(b *flow.Batch, now time.Time) uuid.UUID {
	nobody := uuid.New()
	b.MarkSent(nobody, store.ConfirmationSent, now)
	b.VerifyIdentities(nobody, "nobody", now)
	return nobody
}
