package account

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// keepPending is how many older sign-ups of an address stay open next to a new one: five in all, and a sixth drops the
// oldest.
const keepPending = 4

// signupCandidate is a request for an account with an address. Password and metadata are stored with the token that is
// sent to the address, and only what is confirmed becomes the account's.
type signupCandidate struct {
	id                     uuid.UUID // see newID
	allowed                bool      // by the hook before a creation
	aud, provider, address string    // provider: email or phone
	hash                   string    // "" without a password
	data                   json.RawMessage
	challenge              Challenge
	channel                string
	identity               uuid.UUID // of the provider that gave the address; Nil: none did
	contested              bool      // the message proves the address alone, whatever sign-ups are pending
}

// newID returns the ID that a new account gets: the same in each try, since a hook may have seen it.
func (cand *signupCandidate) newID() uuid.UUID {
	if cand.id == uuid.Nil {
		cand.id = uuid.New()
	}
	return cand.id
}

// accountID returns the ID of the known account, else that of the account to be created.
func (cand *signupCandidate) accountID(known store.User) uuid.UUID {
	if known.ID != uuid.Nil {
		return known.ID
	}
	return cand.newID()
}

// addressState is the state of an address for a sign-up.
type addressState uint8

const (
	addressFree    addressState = iota // no account has it
	addressPending                     // an unconfirmed account has it
	addressTaken                       // a confirmed account has it
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
	return addressTaken // confirmed, or the address of another provider's identity
}

// find adds the look-up of the account with the address.
func (cand *signupCandidate) find(b *batch, dst *store.User) {
	if cand.provider == "email" {
		b.Account(dst, cand.aud, cand.address)
	} else {
		b.UserByPhone(dst, cand.aud, cand.address)
	}
}

// profile returns identity_data, and user_metadata when verified: the service's own members win over those of data.
func (cand *signupCandidate) profile(id uuid.UUID, verified bool, data json.RawMessage) json.RawMessage {
	return profile(id, cand.provider, cand.address, verified, data)
}

func profile(id uuid.UUID, provider, who string, verified bool, data json.RawMessage) json.RawMessage {
	members := map[string]json.RawMessage{}
	if len(data) > 0 {
		_ = json.Unmarshal(data, &members) // it was checked when it came in
	}
	ours := map[string]any{"sub": id.String(), provider: who, "email_verified": false, "phone_verified": false}
	ours[provider+"_verified"] = verified
	for name, value := range ours {
		members[name] = mustJSON(value)
	}
	return mustJSON(members)
}

// user returns the account as a new one is stored, or shown. Nobody has proven an address that is confirmed at once.
func (cand *signupCandidate) user(f *flow, id uuid.UUID, confirmed bool, data json.RawMessage) store.User {
	u := store.User{
		ID: id, Aud: cand.aud, Role: f.settings.Role, CreatedAt: f.now, UpdatedAt: f.now,
		AppMetadata:  mustJSON(map[string]any{"provider": cand.provider, "providers": []string{cand.provider}}),
		UserMetadata: cand.profile(id, confirmed, data),
	}
	i := store.Identity{
		ID: uuid.New(), UserID: id, Provider: cand.provider, ProviderID: id.String(), Data: u.UserMetadata,
		LastSignInAt: f.now, CreatedAt: f.now, UpdatedAt: f.now,
	}
	if cand.provider == "email" {
		u.Email, i.Email = cand.address, cand.address
	} else {
		u.Phone = cand.address
	}
	switch {
	case !confirmed:
		u.ConfirmationSentAt = f.now
	case cand.provider == "email":
		u.EmailConfirmedAt, u.EmailUnproven = f.now, true
	default:
		u.PhoneConfirmedAt, u.PhoneUnproven = f.now, true
	}
	u.Identities = []store.Identity{i}
	return u
}

// newConfirmation returns the message that asks for confirmation; user is the account's ID, pkce nil without PKCE. Its
// template sees the user_metadata that the account will have.
func newConfirmation(f *flow, cand *signupCandidate, user uuid.UUID, pkce *store.Flow) (outgoing, error) {
	var msg outgoing
	var err error
	data := cand.data
	if cand.identity == uuid.Nil { // else it is the provider's, and complete
		data = cand.profile(user, false, cand.data)
	}
	if cand.provider == "email" {
		msg, err = newMail(f, mailSpec{
			kind: store.KindSignup, mail: mail.Confirmation, link: mail.LinkSignup, to: cand.address, flow: idOf(pkce),
			keep: keepPending, vars: mail.Vars{Email: cand.address, Data: data},
		})
	} else {
		msg, err = newSMS(f, store.KindSignup, cand.address, cand.channel, data)
		msg.token.Keep = keepPending
	}
	msg.token.PasswordHash, msg.token.UserMetadata, msg.token.Identity = cand.hash, cand.data, cand.identity
	msg.token.Contested = cand.contested
	return msg, err
}

// externalUser returns the account of a user whom a provider has identified, before anything of it is confirmed; email
// may be "".
func (s *Settings) externalUser(aud, provider, email string, data json.RawMessage, now time.Time) store.User {
	return store.User{
		ID: uuid.New(), Aud: aud, Role: s.Role, Email: email, CreatedAt: now, UpdatedAt: now, UserMetadata: data,
		AppMetadata: mustJSON(map[string]any{"provider": provider, "providers": []string{provider}}),
	}
}

// addPending adds what a sign-up writes: for a free address the account, for a pending one another confirmation, for
// one that is taken as many statements that do nothing. It returns the user's ID, for a taken address one that no user
// has.
func (cand *signupCandidate) addPending(f *flow, b *batch, state addressState, known store.User) uuid.UUID {
	switch state {
	case addressFree:
		u := cand.user(f, cand.newID(), false, nil)
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
		return u.ID
	case addressPending:
		b.MarkSent(known.ID, store.ConfirmationSent, f.now)
		b.VerifyIdentities(uuid.New(), cand.address, f.now)
		return known.ID
	}
	return addNothing(b, f.now)
}

// addNothing adds statements like those of addPending that change nothing, and returns an ID that no user has.
func addNothing(b *batch, now time.Time) uuid.UUID {
	nobody := uuid.New()
	b.MarkSent(nobody, store.ConfirmationSent, now)
	b.VerifyIdentities(nobody, "nobody", now)
	return nobody
}
