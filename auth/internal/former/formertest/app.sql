-- An application as its authors write it after the replaced service's guides, on schema auth. Roles are the cluster's.
do $$
declare r text;
begin
    foreach r in array array['supabase_auth_admin', 'app_owner', 'anon', 'authenticated', 'service_role', 'gatehouse'] loop
        begin
            execute format('create role %I login', r);
        exception when duplicate_object or unique_violation then null;
        end;
    end loop;
end $$;
alter schema auth owner to supabase_auth_admin;
do $$
declare t record;
begin
    for t in select oid::regclass as name from pg_class where relnamespace = 'auth'::regnamespace and relkind in ('r', 'S')
        and not exists (select from pg_depend d where d.objid = pg_class.oid and d.deptype = 'a' and relkind = 'S') loop
        execute format('alter table %s owner to supabase_auth_admin', t.name);
    end loop;
    for t in select oid::regtype as name from pg_type where typnamespace = 'auth'::regnamespace and typtype = 'e' loop
        execute format('alter type %s owner to supabase_auth_admin', t.name);
    end loop;
end $$;
alter function auth.uid() owner to supabase_auth_admin;
create function auth.role() returns text language sql stable as $$ select current_setting('request.jwt.claims', true)::jsonb ->> 'role' $$;
grant usage on schema auth to anon, authenticated, app_owner;
grant select, delete, update, references, trigger, insert, truncate on auth.users, auth.identities, auth.mfa_factors to app_owner;
create policy app_owner on auth.users to app_owner using (true) with check (true);
create policy app_owner on auth.identities to app_owner using (true) with check (true);
create policy app_owner on auth.mfa_factors to app_owner using (true) with check (true);

create schema app authorization app_owner;
create schema storage authorization app_owner;
grant usage on schema app to anon, authenticated, supabase_auth_admin;
grant create on schema public to app_owner;
alter table auth.users add plan text default 'free';
set role app_owner;

create table app.profiles (
    id uuid primary key references auth.users on delete cascade,
    username text unique, phone text unique, address text unique, name text, confirmed_at timestamptz, seen integer default 0);
-- As in the guides: what somebody claims at sign-up makes the profile.
create function app.handle_new_user() returns trigger language plpgsql security definer set search_path = '' as $$
begin
    insert into app.profiles (id, username, phone, address, name) values (new.id, new.raw_user_meta_data ->> 'username',
        new.phone, new.email, new.raw_user_meta_data ->> 'name');
    return new;
end $$;
create trigger on_auth_user_created after insert on auth.users for each row execute function app.handle_new_user();

create function app.handle_metadata() returns trigger language plpgsql security definer set search_path = '' as $$
begin
    update app.profiles set name = new.raw_user_meta_data ->> 'name', seen = seen + 1 where id = new.id;
    return new;
end $$;
create trigger on_metadata after update on auth.users for each row
    when (old.raw_user_meta_data is distinct from new.raw_user_meta_data) execute function app.handle_metadata();

create function app.handle_address() returns trigger language plpgsql security definer set search_path = '' as $$
begin
    update app.profiles set address = new.email where id = new.id;
    insert into app.log (what, id) values ('address', new.id);
    return new;
end $$;
create table app.log (n bigint generated always as identity, what text, id uuid);
create trigger on_address after update of email on auth.users for each row execute function app.handle_address();

create table app.confirmed (id uuid primary key references auth.users on delete cascade, name text);
create function app.handle_confirmed() returns trigger language plpgsql security definer set search_path = '' as $$
begin
    insert into app.confirmed values (new.id, new.raw_user_meta_data ->> 'name');
    return new;
end $$;
create trigger on_confirmed after update on auth.users for each row
    when (old.confirmed_at is null and new.confirmed_at is not null) execute function app.handle_confirmed();

create function app.check_domain() returns trigger language plpgsql as $$
begin
    if new.email like '%@blocked.example' then
        raise exception 'no sign-ups from %', new.email;
    end if;
    if new.email is not null then
        new.raw_app_meta_data = coalesce(new.raw_app_meta_data, '{}') || jsonb_build_object('staff', new.email like '%@staff.example');
    end if;
    return new;
end $$;
create trigger check_domain before insert or update of email on auth.users for each row execute function app.check_domain();

create table app.gone (id uuid, address text);
create function app.handle_gone() returns trigger language plpgsql security definer set search_path = '' as $$
begin
    insert into app.gone values (old.id, old.email);
    return old;
end $$;
create trigger on_gone after delete on auth.users for each row execute function app.handle_gone();

create table app.notes (id bigint generated always as identity, owner uuid default auth.uid() references auth.users, text text);
alter table app.notes enable row level security;
grant select, insert on app.notes to authenticated;
create function app.is_staff() returns boolean language sql stable security definer set search_path = '' as $$
    select coalesce((select (raw_app_meta_data ->> 'staff')::boolean from auth.users where id = auth.uid()), false) $$;
create policy staff on app.notes to authenticated using (owner = auth.uid() or app.is_staff())
    with check (not exists (select from auth.mfa_factors f where f.user_id = auth.uid() and f.status = 'verified')
        or current_setting('request.jwt.claims', true)::jsonb ->> 'aal' = 'aal2');
create view app.people as select id, email, raw_user_meta_data ->> 'name' as name, created_at from auth.users;
create view app.logins as select user_id, provider, last_sign_in_at from auth.identities;

create function app.delete_me() returns void language sql security definer set search_path = '' as $$
    delete from auth.users where id = auth.uid() $$;
create function app.set_claim(who uuid, claim text, value jsonb) returns void language sql security definer set search_path = '' as $$
    update auth.users set raw_app_meta_data = raw_app_meta_data || jsonb_build_object(claim, value) where id = who $$;
create function app.rename_me(name text) returns void language sql security definer set search_path = '' as $$
    update auth.users set raw_user_meta_data = raw_user_meta_data || jsonb_build_object('name', name) where id = auth.uid() $$;
revoke execute on function app.set_claim from public;

create table storage.objects (name text primary key, owner uuid references auth.users);
create table app.users (id uuid primary key, email text);
create unique index users_email_key on app.users (email);
reset role;
