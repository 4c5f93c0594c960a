package account

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
)

var errUnbuilt = errors.New("account: not built yet")

func (a *Accounts) Invite(ctx context.Context, c Client, by Actor, p Invitation) (store.User, error) {
	return store.User{}, errUnbuilt
}
func (a *Accounts) AdminUsers(ctx context.Context, f store.UsersFilter) ([]store.User, int, error) {
	return nil, 0, errUnbuilt
}
func (a *Accounts) AdminUser(ctx context.Context, id uuid.UUID) (store.User, error) {
	return store.User{}, errUnbuilt
}
func (a *Accounts) AdminCreate(ctx context.Context, c Client, by Actor, p Attributes) (store.User, error) {
	return store.User{}, errUnbuilt
}
func (a *Accounts) AdminUpdate(ctx context.Context, c Client, by Actor, id uuid.UUID, p Attributes) (store.User, error) {
	return store.User{}, errUnbuilt
}
func (a *Accounts) AdminDelete(ctx context.Context, c Client, by Actor, id uuid.UUID, soft bool) error {
	return errUnbuilt
}
func (a *Accounts) GenerateLink(ctx context.Context, c Client, by Actor, p LinkRequest) (Link, error) {
	return Link{}, errUnbuilt
}
func (a *Accounts) AuditLog(ctx context.Context, f store.AuditFilter) ([]store.AuditRow, int, error) {
	return nil, 0, errUnbuilt
}
func (a *Accounts) UserSessions(ctx context.Context, id uuid.UUID) ([]store.Session, error) {
	return nil, errUnbuilt
}
