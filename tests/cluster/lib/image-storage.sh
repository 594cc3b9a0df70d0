# shellcheck shell=bash
# buildah's storage in the cache: image layers between builds. A build mounts its layers there, and an interrupted one
# leaves them mounted.

IMAGE_STORAGE=$CACHE/images

image_mounts() { # prints the mount points, the last mounted first
  awk -v below="$IMAGE_STORAGE/" 'index($5, below) == 1 {print $5}' /proc/self/mountinfo | tac
}

# Call this with the lock: then no build is running, and all mounts are leftovers.
release_image_storage() {
  local mount
  for mount in $(image_mounts); do umount "$mount"; done
  rm -rf --one-file-system "$IMAGE_STORAGE/run"
}

lock_image_storage() { # [-n: fail at once if a build is running]
  mkdir -p "$IMAGE_STORAGE"
  exec 9>"$CACHE/images.lock"
  flock "$@" 9
}
