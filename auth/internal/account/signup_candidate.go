package account

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// keepPending is how many older sign-ups of an address stay open beside a new one: with it they are
// five, and a sixth drops the oldest.
const keepPending = 4

// signupCandidate is somebody who asks for an account with an address. What he brings along, password and
// data, hangs on the token that is sent to the address, and only what is confirmed becomes the account's.
type signupCandidate struct {
	id                     uuid.UUID // see newID
	allowed                bool      // by the hook before a creation
	aud, provider, address string    // provider: email or phone
	hash                   string    // "" without a password
	data                   json.RawMessage
	challenge              Challenge
	channel                string
	identity               uuid.UUID // of the provider that told the address; Nil: nobody did
}

// newID is the id that he gets if he is new: the same at each try, since a hook may have been told it.
func (cand *signupCandidate) newID() uuid.UUID {
	if cand.id == uuid.Nil {
		cand.id = uuid.New()
	}
	return cand.id
}

// accountID is the id of the account that is meant: the known one's, else that of the one to be made.
func (cand *signupCandidate) accountID(known store.User) uuid.UUID {
	if known.ID != uuid.Nil {
		return known.ID
	}
	return cand.newID()
}

// addressState is what an address is to a newcomer.
type addressState uint8

const (
	addressFree    addressState = iota // nobody's
	addressPending                     // an account that nobody has confirmed
	addressTaken                       // somebody's
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

// find adds the look-up of who has the address.
func (cand *signupCandidate) find(b *store.Batch, dst *store.User) {
	if cand.provider == "email" {
		b.Account(dst, cand.aud, cand.address)
	} else {
		b.UserByPhone(dst, cand.aud, cand.address)
	}
}

// profile is identity_data, and user_metadata when verified: our own members win over the data's.
func (cand *signupCandidate) profile(id uuid.UUID, verified bool, data json.RawMessage) json.RawMessage {
	return profile(id, cand.provider, cand.address, verified, data)
}

func profile(id uuid.UUID, provider, who string, verified bool, data json.RawMessage) json.RawMessage {
	members := map[string]json.RawMessage{}
	if len(data) > 0 {
		_ = json.Unmarshal(data, &members) // it was checked when it came
	}
	ours := map[string]any{"sub": id.String(), provider: who, "email_verified": false, "phone_verified": false}
	ours[provider+"_verified"] = verified
	for name, value := range ours {
		members[name] = mustJSON(value)
	}
	return mustJSON(members)
}

// user is the account as a new one is stored, or shown.
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
		u.EmailConfirmedAt = f.now
	default:
		u.PhoneConfirmedAt = f.now
	}
	u.Identities = []store.Identity{i}
	return u
}

// confirmation is the letter that the newcomer gets, whose account is user's; flow is nil without PKCE. Its
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
			kind: store.KindSignup, mail: mail.Confirmation, link: mail.LinkSignup, to: cand.address, flow: idOf(pkce), keep: keepPending,
			vars: mail.Vars{Email: cand.address, Data: data},
		})
	} else {
		msg, err = newSMS(f, store.KindSignup, cand.address, cand.channel)
		msg.token.Keep = keepPending
	}
	msg.token.PasswordHash, msg.token.UserMetadata, msg.token.Identity = cand.hash, cand.data, cand.identity
	return msg, err
}

// externalUser is the account of somebody whom a provider vouches for, before anything of it is
// confirmed; email may be "".
func (s *Settings) externalUser(aud, provider, email string, data json.RawMessage, now time.Time) store.User {
	return store.User{
		ID: uuid.New(), Aud: aud, Role: s.Role, Email: email, CreatedAt: now, UpdatedAt: now, UserMetadata: data,
		AppMetadata: mustJSON(map[string]any{"provider": provider, "providers": []string{provider}}),
	}
}

// addPending adds what a sign-up writes: for a fresh address the account, for a pending one another
// confirmation, for one that is taken as many statements that do nothing. It returns the user's id,
// and for a taken address one that nobody has.
func (cand *signupCandidate) addPending(f *flow, b *store.Batch, state addressState, known store.User) uuid.UUID {
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

// addNothing adds statements like those of enlist that change nothing, and is the id of nobody.
func addNothing(b *store.Batch, now time.Time) uuid.UUID {
	nobody := uuid.New()
	b.MarkSent(nobody, store.ConfirmationSent, now)
	b.VerifyIdentities(nobody, "nobody", now)
	return nobody
}
