package account

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
)

// valueOf returns the text of an attribute, "" if it was not given: an empty one changes nothing.
func valueOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func isTrue(flag *bool) bool { return flag != nil && *flag }

// maxClaim is how many bytes a role and an audience may have: they are in every token, which travels in headers.
const maxClaim = 255

func checkClaimLengths(role, aud string) error {
	switch {
	case len(role) > maxClaim:
		return notValid(fmt.Sprintf("Role cannot be longer than %d bytes", maxClaim))
	case len(aud) > maxClaim:
		return notValid(fmt.Sprintf("Audience cannot be longer than %d bytes", maxClaim))
	}
	return nil
}

// AdminCreate makes a user with the given attributes: no mail is sent, and it works while sign-ups are disabled.
func (a *Users) AdminCreate(ctx context.Context, req RequestInfo, by Actor, p Attributes) (store.User, error) {
	f := a.core.Begin(req)
	u := store.User{Aud: cmp.Or(storableText(p.Aud), f.aud()),
		Role: cmp.Or(storableText(valueOf(p.Role)), f.settings.Role), CreatedAt: f.now, UpdatedAt: f.now}
	if err := checkClaimLengths(u.Role, u.Aud); err != nil {
		return store.User{}, err
	}
	if err := takeAddresses(ctx, f, &u, p); err != nil {
		return store.User{}, err
	}
	if err := f.settings.checkAdminPassword(p); err != nil {
		return store.User{}, err
	}
	var err error
	if u.ID, err = parseUserID(p.ID); err != nil {
		return store.User{}, err
	}
	if u.BannedUntil, _, err = parseBan(p.BanDuration, f.now); err != nil {
		return store.User{}, err
	}
	if u.UserMetadata, err = metadata(p.UserMetadata); err != nil {
		return store.User{}, err
	}
	app, err := metadata(p.AppMetadata)
	if err != nil {
		return store.User{}, err
	}
	if f.settings.isTooLarge(u.UserMetadata, app) {
		return store.User{}, f.settings.errTooLarge()
	}
	if u.PasswordHash = valueOf(p.PasswordHash); valueOf(p.Password) != "" {
		if u.PasswordHash, err = f.core.passwords.Hash(ctx, *p.Password); err != nil {
			return store.User{}, failure("hash password", err)
		}
	}
	addIdentities(&u, p, app, f.now)
	b := f.batch()
	b.InsertUser(u)
	for _, i := range u.Identities {
		b.InsertIdentity(i)
	}
	b.Audit(by.audit(f, store.ActionUserSignedUp, "user_id", u.ID.String(), "provider", u.Identities[0].Provider))
	if u.Role != f.settings.Role {
		b.Audit(by.audit(f, store.ActionUserRoleChanged, "user_id", u.ID.String(), "role", u.Role))
	}
	if u.BannedUntil.After(f.now) {
		b.Audit(by.audit(f, store.ActionUserBanned, "user_id", u.ID.String()))
	}
	err = b.Send(ctx)
	switch {
	case errors.Is(err, store.ErrIDTaken) || errors.Is(err, store.ErrIdentityTaken):
		return store.User{}, unprocessable(CodeValidationFailed, "A user with this ID already exists")
	case errors.Is(err, store.ErrEmailTaken):
		return store.User{}, errEmailExists
	case errors.Is(err, store.ErrPhoneTaken):
		return store.User{}, errNumberTaken
	case err != nil:
		return store.User{}, failure("create user", err)
	}
	return u, nil
}

var errNumberTaken = unprocessable(CodePhoneExists, "Phone number already registered by another user")

// takeAddresses checks and sets the addresses of a new user, in this order: the form of the e-mail address, whether it
// is taken, then both for the phone number.
func takeAddresses(ctx context.Context, f *flow, u *store.User, p Attributes) (err error) {
	if valueOf(p.Email) == "" && valueOf(p.Phone) == "" {
		return notValid("Cannot create a user without either an email or phone")
	}
	if valueOf(p.Email) != "" {
		if u.Email, err = parseEmail(*p.Email); err != nil {
			return err
		}
	}
	var badPhone error
	if valueOf(p.Phone) != "" {
		u.Phone, badPhone = parsePhone(*p.Phone)
	}
	var byEmail, byPhone store.User
	b := f.batch()
	if u.Email != "" {
		b.Account(&byEmail, u.Aud, u.Email)
	}
	if u.Phone != "" {
		b.UserByPhone(&byPhone, u.Aud, u.Phone)
	}
	if err := b.Send(ctx); err != nil {
		return failure("look up", err)
	}
	switch {
	case byEmail.ID != uuid.Nil:
		return errEmailExists
	case badPhone != nil:
		return badPhone
	case byPhone.ID != uuid.Nil:
		return errNumberTaken
	}
	return nil
}

// checkAdminPassword checks a password, or the hash of one, that an administrator gives.
func (s *Settings) checkAdminPassword(p Attributes) error {
	text, hash := valueOf(p.Password), valueOf(p.PasswordHash)
	switch {
	case text != "" && hash != "":
		return notValid("Only a password or a password hash should be provided")
	case hash != "":
		if err := password.ValidImport(hash); err != nil {
			return &Refusal{Kind: Invalid, Code: CodeValidationFailed, Msg: "The password hash cannot be used: " +
				err.Error(),
				Err: err}
		}
		return nil
	case text == "":
		return nil
	case len(text) > password.MaxBytes || s.Passwords.PolicyForAdmin:
		return s.checkPassword(text)
	}
	return nil
}

func parseUserID(text string) (uuid.UUID, error) {
	if text == "" {
		return uuid.New(), nil
	}
	id, err := uuid.Parse(text)
	switch {
	case err != nil || len(text) != 36:
		return id, notValid("ID must conform to the uuid v4 format")
	case id == uuid.Nil:
		return id, notValid("ID cannot be a nil uuid")
	}
	return id, nil
}

// parseBan reads a ban_duration: until when, and whether it was given. "none" and 0 end a ban, which is the zero time.
func parseBan(text *string, now time.Time) (until time.Time, given bool, err error) {
	if valueOf(text) == "" {
		return until, false, nil
	}
	if *text == "none" {
		return until, true, nil
	}
	d, err := time.ParseDuration(*text)
	if err == nil && d < 0 {
		err = errors.New("it is negative")
	}
	if err != nil {
		return until, false, notValid(fmt.Sprintf("invalid format for ban duration: %.200s", err))
	}
	if d == 0 {
		return until, true, nil
	}
	return now.Add(d).Truncate(time.Microsecond), true, nil
}

// addIdentities gives a new user its identities and what follows from them.
func addIdentities(u *store.User, p Attributes, app json.RawMessage, now time.Time) {
	confirmed := map[string]bool{}
	var providers []string
	for _, way := range []struct {
		provider, who string
		confirm       bool
		at            *time.Time
	}{
		{"email", u.Email, isTrue(p.EmailConfirm), &u.EmailConfirmedAt},
		{"phone", u.Phone, isTrue(p.PhoneConfirm), &u.PhoneConfirmedAt},
	} {
		if way.who == "" {
			continue
		}
		i := ownIdentity(u.ID, way.provider, way.who, nil, store.UserPatch{Now: now})
		i.Data = profile(u.ID, way.provider, way.who, way.confirm, nil)
		i.LastSignInAt = time.Time{}
		u.Identities = append(u.Identities, *i)
		providers = append(providers, way.provider)
		if way.confirm {
			*way.at = now
			confirmed[way.provider+"_verified"] = true
		}
	}
	u.AppMetadata = merge(mustJSON(map[string]any{"provider": providers[0], "providers": providers}), app)
	u.UserMetadata = merge(u.UserMetadata, mustJSON(confirmed))
}

// merge returns an object with the members of a second one put over it. Either may be nil.
func merge(under, over json.RawMessage) json.RawMessage {
	members := map[string]json.RawMessage{}
	for _, o := range []json.RawMessage{under, over} {
		if len(o) > 0 {
			_ = json.Unmarshal(o, &members) // both were checked
		}
	}
	return mustJSON(members)
}
