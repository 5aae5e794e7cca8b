"""Push an export to the Hugging Face hub. The token is the one of the library: `HF_TOKEN`, or the login of `hf auth login`."""

from __future__ import annotations

from pathlib import Path

from sparring.errors import ServiceError, UsageError


def check_push(repository: str) -> None:
    """Raise UsageError if the name of a repository is not OWNER/NAME, and ServiceError if the library is missing."""
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise UsageError(f"--push {repository!r} names no repository; write OWNER/NAME.")
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise ServiceError(
            "--push needs the library huggingface_hub, which is not installed; install it with "
            "`pip install 'sparring[hub]'`."
        ) from error


def push(folder: Path, repository: str, *, public: bool = False) -> str:
    """Upload all files of an export in one commit, and return the address of the commit.

    A repository that does not exist is created: private, unless `public`. Raises UsageError if the repository is public
    although `public` is false, and ServiceError if the hub refuses the upload or cannot be reached. The folder stays as it
    is.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(repository, private=not public, exist_ok=True)
        if not public and not api.repo_info(repository).private:
            raise UsageError(
                f"{repository} exists and is public, so nothing was uploaded; add --public to publish the policy there, or "
                f"push to another repository. The export is in {folder}."
            )
        done = api.upload_folder(
            repo_id=repository, folder_path=folder, commit_message=f"Add {folder.name}, exported by Sparring"
        )
    except UsageError:
        raise
    except Exception as error:
        # The library raises many kinds of errors, and those of its HTTP client.
        raise ServiceError(
            f"{folder} was written, but not pushed to {repository}: {_explain(error)} Afterwards, push the folder with "
            f"`hf upload {repository} {folder}`."
        ) from error
    return done.commit_url


def _explain(error: Exception) -> str:
    """Return the reason, and what to do."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return "the hub does not accept the token (401). Log in with `hf auth login`, or set HF_TOKEN."
    if status == 403:
        return (
            "the token may not write there (403). Create a token with the permission to write, or name your own OWNER."
        )
    first_line = (str(error).strip().splitlines() or ["no reason given"])[0]
    return f"{type(error).__name__}: {first_line} Check the network and HF_ENDPOINT."
