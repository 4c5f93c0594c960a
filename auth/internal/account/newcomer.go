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

// newcomer is somebody who asks for an account with an address. What he brings along, password and
// data, hangs on the token that is sent to the address, and only what is confirmed becomes the account's.
type newcomer struct {
	id                 uuid.UUID // see newID
	admitted           bool      // by the hook before a creation
	aud, provider, who string    // provider: email or phone
	hash               string    // "" without a password
	data               json.RawMessage
	challenge          Challenge
	channel            string
	identity           uuid.UUID // of the provider that told the address; Nil: nobody did
}

// newID is the id that he gets if he is new: the same at each try, since a hook may have been told it.
func (n *newcomer) newID() uuid.UUID {
	if n.id == uuid.Nil {
		n.id = uuid.New()
	}
	return n.id
}

// idAmong is the id of the account that is meant: the known one's, else that of the one to be made.
func (n *newcomer) idAmong(known store.User) uuid.UUID {
	if known.ID != uuid.Nil {
		return known.ID
	}
	return n.newID()
}

// standing is what an address is to a newcomer.
type standing uint8

const (
	fresh   standing = iota // nobody's
	pending                 // an account that nobody has confirmed
	taken                   // somebody's
)

func (n *newcomer) standing(u store.User) standing {
	switch {
	case u.ID == uuid.Nil:
		return fresh
	case n.provider == "email" && u.Email == n.who && u.EmailConfirmedAt.IsZero():
		return pending
	case n.provider == "phone" && u.PhoneConfirmedAt.IsZero():
		return pending
	}
	return taken // confirmed, or the address of another provider's identity
}

// find adds the look-up of who has the address.
func (n *newcomer) find(b *store.Batch, dst *store.User) {
	if n.provider == "email" {
		b.Account(dst, n.aud, n.who)
	} else {
		b.UserByPhone(dst, n.aud, n.who)
	}
}

// profile is identity_data, and user_metadata when verified: our own members win over the data's.
func (n *newcomer) profile(id uuid.UUID, verified bool, data json.RawMessage) json.RawMessage {
	return profile(id, n.provider, n.who, verified, data)
}

func profile(id uuid.UUID, provider, who string, verified bool, data json.RawMessage) json.RawMessage {
	members := map[string]json.RawMessage{}
	if len(data) > 0 {
		_ = json.Unmarshal(data, &members) // it was checked when it came
	}
	ours := map[string]any{"sub": id.String(), provider: who, "email_verified": false, "phone_verified": false}
	ours[provider+"_verified"] = verified
	for name, value := range ours {
		members[name] = object(value)
	}
	return object(members)
}

// user is the account as a new one is stored, or shown.
func (n *newcomer) user(f *flow, id uuid.UUID, confirmed bool, data json.RawMessage) store.User {
	u := store.User{
		ID: id, Aud: n.aud, Role: f.settings.Role, CreatedAt: f.now, UpdatedAt: f.now,
		AppMetadata:  object(map[string]any{"provider": n.provider, "providers": []string{n.provider}}),
		UserMetadata: n.profile(id, confirmed, data),
	}
	i := store.Identity{
		ID: uuid.New(), UserID: id, Provider: n.provider, ProviderID: id.String(), Data: u.UserMetadata,
		LastSignInAt: f.now, CreatedAt: f.now, UpdatedAt: f.now,
	}
	if n.provider == "email" {
		u.Email, i.Email = n.who, n.who
	} else {
		u.Phone = n.who
	}
	switch {
	case !confirmed:
		u.ConfirmationSentAt = f.now
	case n.provider == "email":
		u.EmailConfirmedAt = f.now
	default:
		u.PhoneConfirmedAt = f.now
	}
	u.Identities = []store.Identity{i}
	return u
}

// confirmation is the letter that the newcomer gets, whose account is user's; flow is nil without PKCE. Its
// template sees the user_metadata that the account will have.
func newConfirmation(f *flow, n *newcomer, user uuid.UUID, flow *store.Flow) (outgoing, error) {
	var msg outgoing
	var err error
	data := n.data
	if n.identity == uuid.Nil { // else it is the provider's, and complete
		data = n.profile(user, false, n.data)
	}
	if n.provider == "email" {
		msg, err = newMail(f, mailSpec{
			kind: store.KindSignup, mail: mail.Confirmation, link: mail.LinkSignup, to: n.who, flow: idOf(flow), keep: keepPending,
			vars: mail.Vars{Email: n.who, Data: data},
		})
	} else {
		msg, err = newSMS(f, store.KindSignup, n.who, n.channel)
		msg.token.Keep = keepPending
	}
	msg.token.PasswordHash, msg.token.UserMetadata, msg.token.Identity = n.hash, n.data, n.identity
	return msg, err
}

// externalUser is the account of somebody whom a provider vouches for, before anything of it is
// confirmed; email may be "".
func (s *Settings) externalUser(aud, provider, email string, data json.RawMessage, now time.Time) store.User {
	return store.User{
		ID: uuid.New(), Aud: aud, Role: s.Role, Email: email, CreatedAt: now, UpdatedAt: now, UserMetadata: data,
		AppMetadata: object(map[string]any{"provider": provider, "providers": []string{provider}}),
	}
}

// enlist adds what a sign-up writes: for a fresh address the account, for a pending one another
// confirmation, for one that is taken as many statements that do nothing. It returns the user's id,
// and for a taken address one that nobody has.
func (n *newcomer) enlist(f *flow, b *store.Batch, st standing, known store.User) uuid.UUID {
	switch st {
	case fresh:
		u := n.user(f, n.newID(), false, nil)
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
		return u.ID
	case pending:
		b.MarkSent(known.ID, store.ConfirmationSent, f.now)
		b.VerifyIdentities(uuid.New(), n.who, f.now)
		return known.ID
	}
	return idle(b, f.now)
}

// idle adds statements like those of enlist that change nothing, and is the id of nobody.
func idle(b *store.Batch, now time.Time) uuid.UUID {
	nobody := uuid.New()
	b.MarkSent(nobody, store.ConfirmationSent, now)
	b.VerifyIdentities(nobody, "nobody", now)
	return nobody
}
