package httpapi

import (
	"strconv"
	"time"

	"gatehouse/auth/internal/account/oauth"
	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/store"
)

// AppendUser appends a user as JSON, in the same form in all answers: without secrets and internal state, with the same
// members in the same order.
func AppendUser(b []byte, u *store.User) []byte {
	b = appendID(append(b, `{"id":`...), u.ID)
	b = jsontext.AppendString(append(b, `,"aud":`...), u.Aud)
	b = jsontext.AppendString(append(b, `,"role":`...), u.Role)
	b = jsontext.AppendString(append(b, `,"email":`...), u.Email)
	b = fieldTime(b, `,"email_confirmed_at":`, u.EmailConfirmedAt)
	b = fieldTime(b, `,"invited_at":`, u.InvitedAt)
	b = jsontext.AppendString(append(b, `,"phone":`...), u.Phone)
	b = fieldTime(b, `,"phone_confirmed_at":`, u.PhoneConfirmedAt)
	b = fieldTime(b, `,"confirmation_sent_at":`, u.ConfirmationSentAt)
	b = fieldTime(b, `,"confirmed_at":`, confirmedAt(u))
	b = fieldTime(b, `,"recovery_sent_at":`, u.RecoverySentAt)
	b = fieldString(b, `,"new_email":`, u.NewEmail)
	b = fieldTime(b, `,"email_change_sent_at":`, u.EmailChangeSentAt)
	b = fieldString(b, `,"new_phone":`, u.NewPhone)
	b = fieldTime(b, `,"phone_change_sent_at":`, u.PhoneChangeSentAt)
	b = fieldTime(b, `,"reauthentication_sent_at":`, u.ReauthenticationSentAt)
	b = fieldTime(b, `,"last_sign_in_at":`, u.LastSignInAt)
	b = appendRaw(append(b, `,"app_metadata":`...), u.AppMetadata, "{}")
	b = appendRaw(append(b, `,"user_metadata":`...), u.UserMetadata, "{}")
	b = appendList(append(b, `,"identities":`...), u.Identities, appendIdentity)
	if len(u.Factors) > 0 {
		b = appendList(append(b, `,"factors":`...), u.Factors, appendFactor)
	}
	b = appendTime(append(b, `,"created_at":`...), u.CreatedAt)
	b = appendTime(append(b, `,"updated_at":`...), u.UpdatedAt)
	b = fieldTime(b, `,"banned_until":`, u.BannedUntil)
	b = fieldTime(b, `,"deleted_at":`, u.DeletedAt)
	return append(strconv.AppendBool(append(b, `,"is_anonymous":`...), u.IsAnonymous), '}')
}

// confirmedAt returns the time at which the first of the user's addresses was confirmed.
func confirmedAt(u *store.User) time.Time {
	if u.EmailConfirmedAt.IsZero() || !u.PhoneConfirmedAt.IsZero() && u.PhoneConfirmedAt.Before(u.EmailConfirmedAt) {
		return u.PhoneConfirmedAt
	}
	return u.EmailConfirmedAt
}

// appendIdentity appends an identity as JSON: identity_id is the ID of the identity, id the user's ID at the provider.
func appendIdentity(b []byte, i *store.Identity) []byte {
	b = appendID(append(b, `{"identity_id":`...), i.ID)
	b = jsontext.AppendString(append(b, `,"id":`...), i.ProviderID)
	b = appendID(append(b, `,"user_id":`...), i.UserID)
	if len(i.Data) > 2 && string(i.Data) != "null" {
		b = append(append(b, `,"identity_data":`...), i.Data...)
	}
	b = jsontext.AppendString(append(b, `,"provider":`...), i.Provider)
	b = fieldTime(b, `,"last_sign_in_at":`, i.LastSignInAt)
	b = appendTime(append(b, `,"created_at":`...), i.CreatedAt)
	b = appendTime(append(b, `,"updated_at":`...), i.UpdatedAt)
	b = fieldString(b, `,"email":`, oauth.IdentityEmail(i))
	return append(b, '}')
}

// userView answers 200 with a user if err, the result of a flow, is nil.
func (c *call) userView(u store.User, err error) error {
	if err != nil {
		return err
	}
	return c.json(200, AppendUser(make([]byte, 0, 1024), &u))
}
