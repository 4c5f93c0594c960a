package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
)

// valueOf returns the text of an attribute, or "" if the request does not have the attribute, which means the same.
func valueOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func isTrue(flag *bool) bool { return flag != nil && *flag }

// AdminCreate creates a user with the given attributes. It sends no mail, and works while sign-ups are disabled.
func (a *Users) AdminCreate(ctx context.Context, req flow.RequestInfo, by flow.Actor,
	p flow.Attributes) (store.User, error) {
	f := a.core.Begin(req)
	u := store.User{Aud: cmp.Or(flow.StorableText(p.Aud), f.Aud()),
		Role: cmp.Or(flow.StorableText(valueOf(p.Role)), f.Settings.Role), CreatedAt: f.Now, UpdatedAt: f.Now}
	if err := flow.CheckClaimLengths(u.Role, u.Aud); err != nil {
		return store.User{}, err
	}
	if err := takeAddresses(ctx, f, &u, p); err != nil {
		return store.User{}, err
	}
	if err := checkAdminPassword(f.Settings, p); err != nil {
		return store.User{}, err
	}
	var err error
	if u.ID, err = parseUserID(p.ID); err != nil {
		return store.User{}, err
	}
	if u.BannedUntil, _, err = parseBan(p.BanDuration, f.Now); err != nil {
		return store.User{}, err
	}
	if u.UserMetadata, err = flow.Metadata(p.UserMetadata); err != nil {
		return store.User{}, err
	}
	app, err := flow.Metadata(p.AppMetadata)
	if err != nil {
		return store.User{}, err
	}
	if f.Settings.IsTooLarge(u.UserMetadata, app) {
		return store.User{}, f.Settings.ErrTooLarge()
	}
	if u.PasswordHash = valueOf(p.PasswordHash); valueOf(p.Password) != "" {
		if u.PasswordHash, err = f.Core.Passwords.Hash(ctx, *p.Password); err != nil {
			return store.User{}, refusal.Failure("hash password", err)
		}
	}
	addIdentities(&u, p, app, f.Now)
	b := f.Batch()
	b.InsertUser(u)
	for _, i := range u.Identities {
		b.InsertIdentity(i)
	}
	b.Audit(by.Audit(f, store.ActionUserSignedUp, "user_id", u.ID.String(), "provider", u.Identities[0].Provider))
	if u.Role != f.Settings.Role {
		b.Audit(by.Audit(f, store.ActionUserRoleChanged, "user_id", u.ID.String(), "role", u.Role))
	}
	if u.BannedUntil.After(f.Now) {
		b.Audit(by.Audit(f, store.ActionUserBanned, "user_id", u.ID.String()))
	}
	if err := b.Send(ctx); err != nil {
		return store.User{}, creationError(err)
	}
	return u, nil
}

// creationError converts an error of the store to a refusal.
func creationError(err error) error {
	switch {
	case errors.Is(err, store.ErrIDTaken) || errors.Is(err, store.ErrIdentityTaken):
		return refusal.Unprocessable(refusal.CodeValidationFailed, "A user with this ID already exists")
	case errors.Is(err, store.ErrEmailTaken):
		return flow.ErrEmailExists
	case errors.Is(err, store.ErrPhoneTaken):
		return errNumberTaken
	}
	return refusal.Failure("create user", err)
}

var errNumberTaken = refusal.Unprocessable(refusal.CodePhoneExists, "Phone number already registered by another user")

// takeAddresses checks the addresses of a new user and sets them in u. It first checks the form of the e-mail address
// and whether another user has it, then the same of the phone number.
func takeAddresses(ctx context.Context, f *flow.Flow, u *store.User, p flow.Attributes) (err error) {
	if valueOf(p.Email) == "" && valueOf(p.Phone) == "" {
		return refusal.NotValid("Cannot create a user without either an email or phone")
	}
	if valueOf(p.Email) != "" {
		if u.Email, err = flow.ParseEmail(*p.Email); err != nil {
			return err
		}
	}
	var badPhone error
	if valueOf(p.Phone) != "" {
		u.Phone, badPhone = flow.ParsePhone(*p.Phone)
	}
	var byEmail, byPhone store.User
	b := f.Batch()
	if u.Email != "" {
		b.Account(&byEmail, u.Aud, u.Email)
	}
	if u.Phone != "" {
		b.UserByPhone(&byPhone, u.Aud, u.Phone)
	}
	if err := b.Send(ctx); err != nil {
		return refusal.Failure("look up", err)
	}
	switch {
	case byEmail.ID != uuid.Nil:
		return flow.ErrEmailExists
	case badPhone != nil:
		return badPhone
	case byPhone.ID != uuid.Nil:
		return errNumberTaken
	}
	return nil
}

// checkAdminPassword checks the password, or the hash of a password, that an administrator sets.
func checkAdminPassword(s *flow.Settings, p flow.Attributes) error {
	text, hash := valueOf(p.Password), valueOf(p.PasswordHash)
	switch {
	case text != "" && hash != "":
		return refusal.NotValid("Only a password or a password hash should be provided")
	case hash != "":
		if err := password.ValidImport(hash); err != nil {
			return &refusal.Refusal{Kind: refusal.KindInvalid, Code: refusal.CodeValidationFailed,
				Msg: "The password hash cannot be used: " + err.Error(), Err: err}
		}
		return nil
	case text == "":
		return nil
	case len(text) > password.MaxBytes || s.Passwords.PolicyForAdmin:
		return s.CheckPassword(text)
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
		return id, refusal.NotValid("ID must conform to the uuid v4 format")
	case id == uuid.Nil:
		return id, refusal.NotValid("ID cannot be a nil uuid")
	}
	return id, nil
}

// parseBan parses a ban_duration. It returns the end of the ban, and whether the request has a ban_duration. For "none"
// and 0, which end a ban, the time is zero.
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
		return until, false, refusal.NotValid(fmt.Sprintf("invalid format for ban duration: %.200s", err))
	}
	if d == 0 {
		return until, true, nil
	}
	return now.Add(d).Truncate(time.Microsecond), true, nil
}

// addIdentities sets the identities of a new user, and the metadata that follows from them.
func addIdentities(u *store.User, p flow.Attributes, app json.RawMessage, now time.Time) {
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
		i := flow.OwnIdentity(u.ID, way.provider, way.who, nil, store.UserPatch{Now: now})
		i.Data = flow.Profile(u.ID, way.provider, way.who, way.confirm, nil)
		i.LastSignInAt = time.Time{}
		u.Identities = append(u.Identities, *i)
		providers = append(providers, way.provider)
		if way.confirm {
			*way.at = now
			confirmed[way.provider+"_verified"] = true
		}
	}
	u.AppMetadata = flow.Merge(flow.MustJSON(map[string]any{"provider": providers[0], "providers": providers}), app)
	u.UserMetadata = flow.Merge(u.UserMetadata, flow.MustJSON(confirmed))
}
